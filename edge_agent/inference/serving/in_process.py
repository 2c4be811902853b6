"""Models in the agent's own process (``infer.isolation = "none"``): less memory, faster, and unprotected.

The same servant answers as in a process of its own, without a socket between. Fast requests are answered on
the event loop at once, because a thread would take longer than the model; others in a thread.
"""

import asyncio
import contextlib
import threading
import time
from typing import Final

import structlog

from edge_agent.inference.onnx_models.compatibility import PRESENT
from edge_agent.inference.serving.channel import Channel
from edge_agent.inference.serving.codec import MAX_BODY, Arrays, Header
from edge_agent.inference.serving.host import Answer, ChannelClosed
from edge_agent.inference.serving.model_server import ModelServer
from edge_agent.inference.serving.zygote_client import ZygoteClient
from models.worker.job_loop import trim_memory
from protocol.errors import Transient

_log = structlog.get_logger(__name__)
QUICK_S: Final = 0.005
"""Requests expected to take less are answered on the event loop: sensors are read in threads, and are delayed
no more than by a garbage collection."""
_THREAD: Final = "lichen-model"


class InProcessChannel:
    """A servant in this process, one request at a time. Cheap to make; the model comes with ``open``."""

    def __init__(self) -> None:
        self._servant: ModelServer | None = ModelServer()
        self._row_s: float | None = None
        """Seconds of the last window; None: unknown yet."""
        self._reads = False
        """Whether a run reads the disk for own tensors, and blends new ones."""
        self.broken = ""
        """Why the channel is closed."""

    async def ask(self, header: Header, arrays: Arrays, timeout_s: float, max_body: int = MAX_BODY) -> Answer:
        """As ``channel.Channel``. A late answer goes on in its thread; it cannot be stopped.

        Raises Transient if the system gives no thread.
        """
        del max_body  # the memory is already this process's
        if self._servant is None:
            raise ChannelClosed(self.broken)
        rows = len(arrays[PRESENT]) if header["op"] == "predict" else 0
        self._reads |= header["op"] == "task"
        quick = self._row_s is not None and rows * self._row_s <= QUICK_S
        try:
            if rows and quick and not self._reads:
                return self._answer(self._servant, header, arrays, rows)
            async with asyncio.timeout(timeout_s):
                return await self._in_a_thread(self._servant, header, arrays, rows)
        except (ChannelClosed, Transient) as error:
            self._break(str(error))
            raise
        except TimeoutError:
            self._break(f"it has not answered in {timeout_s:g} s")
            raise ChannelClosed(self.broken) from None
        except asyncio.CancelledError:
            self._break("the request was cancelled")
            raise

    def close(self) -> None:
        """Drop the model; its memory returns to the agent and, where possible, to the system."""
        self._break("it was closed")

    def _break(self, why: str) -> None:
        if self._servant is not None:
            self.broken, self._servant = why, None
            trim_memory()

    def _in_a_thread(
        self, servant: ModelServer, header: Header, arrays: Arrays, rows: int
    ) -> asyncio.Future[Answer]:
        """Run in a daemon thread: one that hangs must not delay the agent's end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer | None, error: Exception | None) -> None:
            if future.done():
                return
            if answer is None:
                future.set_exception(error or ChannelClosed("it has ended"))
            else:
                future.set_result(answer)

        def work() -> None:
            answer, failed = None, None
            try:
                answer = self._answer(servant, header, arrays, rows)
            except ChannelClosed as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, answer, failed)

        try:
            threading.Thread(target=work, name=_THREAD, daemon=True).start()
        except RuntimeError as error:
            raise Transient(f"the system gives no thread to run the model in: {error}") from None
        return future

    def _answer(self, servant: ModelServer, header: Header, arrays: Arrays, rows: int) -> Answer:
        """Raises ChannelClosed if the servant fails, as its process would end."""
        began = time.perf_counter()
        try:
            answer = servant.answer(header, dict(arrays))
        except Exception as error:  # noqa: BLE001 - where a servant's process would end, and the agent must not
            _log.exception("model_failed")
            raise ChannelClosed(f"it failed: {type(error).__name__}: {error}"[:500]) from None
        if rows:
            self._row_s = (time.perf_counter() - began) / rows
        return answer


class InProcessHost:
    """Its servants are in this process."""

    async def channel(self) -> tuple[None, InProcessChannel]:
        """A new servant."""
        return None, InProcessChannel()

    async def exit_status(self, pid: int) -> int | None:  # noqa: ARG002 - it has no process
        """Always unknown."""
        return None

    def end(self, pid: int) -> None:
        """There is no process to end."""


Host = ZygoteClient | InProcessHost
ModelChannel = Channel | InProcessChannel


def all_ended(patience_s: float) -> bool:
    """Wait for threads that still run a model; whether all have ended.

    A thread that returns from ONNX Runtime while the interpreter ends aborts the process, by SIGABRT.
    """
    until = time.monotonic() + patience_s
    threads = [thread for thread in threading.enumerate() if thread.name == _THREAD]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
