"""The agent's side of the zygote: starts it, requests servants, knows how they ended."""

import asyncio
import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cbor2
import structlog

from edge_agent.inference.onnx_models.exit_words import exit_words
from edge_agent.inference.serving import zygote
from edge_agent.inference.serving.channel import Channel
from edge_agent.inference.serving.reaper import ended, reaped
from edge_agent.inference.serving.zygote import PACKET
from models.worker.job_loop import shed_memory
from protocol.errors import Transient
from runtime.settings.load import LogSettings

_log = structlog.get_logger(__name__)
READY_TIMEOUT_S: Final = 60.0
"""Seconds to load ONNX Runtime, from a slow card."""
IDLE_S: Final = 10.0
"""Idle time of the zygote if it only tries models that run in the agent: the next trial may come soon."""
_TIMEOUT_S: Final = 10.0
_TASKS: Final = Path("/proc/self/task")


@dataclass(frozen=True)
class Ready:
    """State of ONNX Runtime here.

    Attributes:
        why: why no model can run; empty if one can.
        version: of ONNX Runtime.
        providers: that it was built with.
    """

    why: str
    version: str = ""
    providers: tuple[str, ...] = ()


class ZygoteClient:
    """At most one process at a time; one that has died is restarted when next needed.

    Args:
        log: logging of processes that are started (and not forked).
        python: the interpreter.
        idle_s: it ends after this time without a servant or a request; None: it stays.
    """

    def __init__(
        self, log: LogSettings | None = None, *, python: str = sys.executable, idle_s: float | None = None
    ) -> None:
        self._log = log or LogSettings()
        self._python = python
        self._sock: socket.socket | None = None
        self._pid: int | None = None
        """Process id, if it was forked."""
        self._process: asyncio.subprocess.Process | None = None
        """Process, if it was started."""
        self._one_at_a_time = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._is_told = False
        """Whether the missing confinement of model processes was logged."""
        self._closed = False
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None
        self._resting: asyncio.Task[None] | None = None
        self._out: set[int] = set()
        """Servants that were not ended yet."""

    @property
    def pid(self) -> int | None:
        """Process id of the present zygote, if any."""
        return self._pid if self._process is None else self._process.pid

    def fork(self) -> None:
        """Fork it from this process, which must hold nothing yet that a fork must not copy.

        If this process has other threads, or the system has no such sockets, nothing happens: it is started
        when needed.
        """
        if sys.platform != "linux" or len(list(_TASKS.iterdir())) > 1:
            return
        shed_memory()  # once, and not in every process: none of them may write to what they share
        ours, theirs = _pair()
        pid = os.fork()
        if not pid:
            ours.close()
            try:
                zygote.live(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._sock, self._pid = ours, pid

    async def ready(self) -> Ready:
        """Load ONNX Runtime there; its state.

        If that process dies, another one is asked once more: it may have been killed for its memory.
        """
        try:
            try:
                said = await self._ask({"op": "ready"}, READY_TIMEOUT_S)
            except Transient:
                said = await self._ask({"op": "ready"}, READY_TIMEOUT_S)
        except Transient as error:
            return Ready(str(error))
        return Ready(_said(said["why"]), said.get("version", ""), tuple(said.get("providers", ())))

    async def servant(self) -> tuple[int, socket.socket]:
        """A new servant: process id, and our end of its socket.

        Raises:
            Transient: no servant can be started; the message says why.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            answer = await self._ask({"op": "fork"}, READY_TIMEOUT_S, theirs)
        except BaseException:
            ours.close()  # a servant that was started all the same sees that its socket is closed
            raise
        if "pid" not in answer:
            ours.close()
            raise Transient(_said(answer["why"]))
        if not answer["landlock"] and not self._is_told:
            self._is_told = True
            _log.warning("landlock_missing", detail="models' processes may read what the agent may read")
        pid = int(answer["pid"])
        self._out.add(pid)
        return pid, ours

    async def channel(self) -> tuple[int, Channel]:
        """As :meth:`servant`, with a channel."""
        pid, sock = await self.servant()
        return pid, Channel(sock)

    async def exit_status(self, pid: int) -> int | None:
        """How a servant ended: exit status, negative for a signal; None if unknown. Kills it if needed."""
        self._out.discard(pid)
        if self._sock is None:
            return None
        try:
            status = (await self._ask({"op": "fate", "pid": pid}, _TIMEOUT_S))["status"]
        except Transient:
            return None
        return None if status is None else int(status)

    def end(self, pid: int) -> None:
        """End a servant in any state."""
        self._out.discard(pid)
        if self._sock is not None:
            with contextlib.suppress(OSError):  # the zygote has ended, and its servants with it
                self._sock.send(cbor2.dumps({"op": "end", "pid": pid}))
        self._arm()

    def close(self) -> None:
        """End it, and with it all servants; no other is started."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        pid, self._pid = self._pid, None
        if pid is not None:
            reaped(pid)

    async def aclose(self) -> None:
        """As :meth:`close`, and wait for a process that was started."""
        self.close()
        async with self._starting:  # a process that is being started ends itself
            pass
        if self._resting is not None:
            await asyncio.wait([self._resting])
        process, self._process = self._process, None
        if process is not None:
            await ended(process)

    async def _ask(
        self, asked: dict[str, Any], timeout_s: float, given: socket.socket | None = None
    ) -> dict[str, Any]:
        """Send one request; ``given`` is passed with it, and closed. Raises Transient.

        If the caller is cancelled, the answer is still read.
        """
        exchange = asyncio.ensure_future(self._exchange(asked, timeout_s, given))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _exchange(
        self, asked: dict[str, Any], timeout_s: float, given: socket.socket | None
    ) -> dict[str, Any]:
        try:
            async with self._one_at_a_time:
                sock = self._sock or await self._start()
                try:
                    socket.send_fds(sock, [cbor2.dumps(asked)], [] if given is None else [given.fileno()])
                    async with asyncio.timeout(timeout_s):
                        data = await asyncio.get_running_loop().sock_recv(sock, PACKET)
                except TimeoutError:
                    raise Transient(
                        await self._lost(asked, f"it did not answer in {timeout_s:g} s")
                    ) from None
                except OSError:
                    data = b""
                if not data:
                    raise Transient(await self._lost(asked, ""))
                return dict(cbor2.loads(data))
        finally:
            if given is not None:
                given.close()
            self._arm()

    def _arm(self) -> None:
        """Schedule its end after an idle time."""
        if self._idle_s is None or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._idle)

    def _idle(self) -> None:
        self._timer = None
        if not self._out:
            self._resting = asyncio.ensure_future(self._rest())

    async def _rest(self) -> None:
        """End it to free its memory; the next request starts another."""
        async with self._one_at_a_time:
            # Set the timer again: the caller of a request meanwhile may not know of its servant yet.
            if self._timer is None and self._sock is not None and not self._out:
                await self._gone()

    async def _start(self) -> socket.socket:
        """Start it as a process of its own. Raises Transient."""
        async with self._starting:
            if self._closed:
                raise Transient("the agent ends: no more models are started")
            ours, theirs = _pair()
            arguments = ["-P", "-m", "edge_agent.inference.serving.zygote", str(theirs.fileno())]
            try:
                process = await asyncio.create_subprocess_exec(
                    self._python,
                    *arguments,
                    self._log.model_dump_json(),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                ours.close()
                raise Transient(f"no process can be started for models: {error}") from None
            finally:
                theirs.close()
            if self._closed:  # meanwhile: nobody else knows of this process
                ours.close()
                await ended(process)
                raise Transient("the agent ends: no more models are started")
            self._sock, self._process = ours, process
            return ours

    async def _lost(self, asked: dict[str, Any], why: str) -> str:
        """Text on how it ended; it is killed if it has not."""
        fate = exit_words(await self._gone(), "", loading=asked["op"] == "ready")
        words = why or fate or "it ended"
        _log.error("zygote_gone", why=words)
        return words

    async def _gone(self) -> int:
        """Its exit status; it is killed if it has not ended."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        pid, process = self._pid, self._process
        self._pid = self._process = None
        self._out.clear()
        if process is not None:
            return await ended(process)
        return 0 if pid is None else await asyncio.to_thread(reaped, pid)


def _pair() -> tuple[socket.socket, socket.socket]:
    """A pair of packet sockets; the first end does not block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def _said(why: str) -> str:
    return exit_words(1, why) if why else ""
