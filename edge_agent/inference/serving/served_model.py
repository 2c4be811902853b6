"""A model, as the agent holds it: started, called, restarted, ended; in its process or in the agent's."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.compatibility import FLOAT32, MODEL_FILE
from edge_agent.inference.onnx_models.exit_words import exit_words
from edge_agent.inference.providers.kinds import CPU, ON_CPU, Provider
from edge_agent.inference.serving.codec import Arrays, Header
from edge_agent.inference.serving.host import ChannelClosed
from edge_agent.inference.serving.in_process import Host, ModelChannel
from protocol.bundle import BundleManifest
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.tasks.task import Task

_log = structlog.get_logger(__name__)
OPEN_TIMEOUT_S: Final = 60.0
"""Seconds to open a model and try it once."""
_ON_ACCELERATOR: Final = 2
"""Failures in a row after which an accelerator is given up."""
_HANGS: Final = "not answered"
"""In the words of ``ChannelClosed``."""
_REASONS: Final = {reason.value: reason for reason in Reason}


class PredictionFailed(LichenError):  # noqa: N818 - reads as what happened
    """A batch has no answer; the message says why."""


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened.

    Attributes:
        threads: of ONNX Runtime.
        timeout_s: to answer a batch.
        private: folder of the private tensors; None: there are none.
        file: in the bundle's folder.
        provider: runs it.
        open_timeout_s: to open the model and try it once.
    """

    threads: int = 1
    timeout_s: float = 10.0
    private: Path | None = None
    file: str = MODEL_FILE
    provider: Provider = ON_CPU
    open_timeout_s: float = OPEN_TIMEOUT_S


class ServedModel:
    """The common part of models of windows and of knowledge graphs.

    Args:
        host: where models run.
        folder: an unpacked bundle.
        manifest: of it.
        options: how it is opened.
    """

    def __init__(self, host: Host, folder: Path, manifest: BundleManifest, options: ModelOptions) -> None:
        self.manifest = manifest
        self.digest = folder.name
        self.own = False
        """Whether the last answer used the device's own tensors."""
        self.pid: int | None = None
        """Process id, while it has a process of its own."""
        self.choice: dict[str, Any] = {}
        """The chosen variant and why, for people (``edge_agent.inference.serving.variants.choice``)."""
        self.failures = 0
        """Batches in a row without an answer from its process."""
        self.ran_s = 0.0
        """The part of the last answer's time that ONNX Runtime took."""
        self._host = host
        self._folder = folder
        self._options = options
        self._channel: ModelChannel | None = None
        self._task: Task | None = None
        self._closed = False
        self._one = asyncio.Lock()
        """Its channel takes one request at a time: live windows, and windows to be labelled."""

    async def start(self) -> None:
        """Start the process, open the model, run it once.

        Raises:
            Refused: it does not open or run, or crashes its process.
            Transient: no process can be started.
        """
        self.pid, self._channel = await self._host.channel()
        self._task = None
        how = self._options
        asked = {
            "op": "open",
            "folder": str(self._folder.absolute()),
            "threads": how.threads,
            "file": how.file,
            **how.provider.header(),
            "private": None if how.private is None else str(how.private.absolute()),
        }
        try:
            answer, _ = await self._channel.ask(asked, {}, how.open_timeout_s)
        except ChannelClosed:
            raise Refused(Reason.MALFORMED, await self._end_reason()) from None
        except BaseException:
            self._end()
            raise
        try:
            require_answer(answer)
        except Refused:
            self._end()
            raise
        if self._closed:
            self._end()

    async def ended(self) -> None:
        """As :meth:`close`, and wait until the process has ended."""
        self._closed = True
        await self._end_reason()

    def close(self) -> None:
        """End the process; its memory returns to the system."""
        self._closed = True
        self._end()

    async def request(
        self, header: Header, arrays: Arrays, max_body: int
    ) -> tuple[Header, dict[str, NDArray[Any]]]:
        """Send a request, after those before it; raises PredictionFailed."""
        async with self._one:
            try:
                return await self._request(header, arrays, max_body)
            except PredictionFailed as error:
                if not await self._fell_back(f"{error}"):
                    raise
            return await self._request(header, arrays, max_body)

    async def _fell_back(self, why: str) -> bool:
        """Give up an accelerator that hangs or failed twice in a row; then float32 on the CPU answers."""
        name, hangs = self._options.provider.name, _HANGS in why
        if self._closed or self._options.provider.on_cpu:
            return False
        if not hangs and self.failures < _ON_ACCELERATOR:
            return False
        await self._end_reason()
        self._options = replace(
            self._options, file=MODEL_FILE, provider=ON_CPU, open_timeout_s=OPEN_TIMEOUT_S
        )
        words = f"{name} {'hangs' if hangs else f'failed {self.failures} times in a row'}: {why}"
        self.choice = {"variant": FLOAT32, "provider": CPU, "why": words[:500]}
        version = self.manifest.version
        _log.error("provider_given_up", detail="float32 on the CPU is used", version=version, why=words)
        return True

    async def _request(
        self, header: Header, arrays: Arrays, max_body: int
    ) -> tuple[Header, dict[str, NDArray[Any]]]:
        if self._closed:
            raise PredictionFailed("the model is not used any more")
        try:
            channel = self._channel
            if channel is None or channel.broken:
                if channel is not None:
                    _log.warning(
                        "model_restarted", version=self.manifest.version, why=await self._end_reason()
                    )
                await self.start()
                channel = self._channel
            if channel is None:
                raise PredictionFailed("the model is not used any more")
            answer, found = await channel.ask(header, arrays, self._options.timeout_s, max_body)
            require_answer(answer)
        except ChannelClosed:
            self.failures += 1
            raise PredictionFailed(await self._end_reason()) from None
        except (Refused, Transient) as error:
            self.failures += 1
            raise PredictionFailed(error.detail if isinstance(error, Refused) else str(error)) from None
        return answer, found

    async def use(self, task: Task) -> None:
        """Tell the process about another task. Raises PredictionFailed."""
        if task is not self._task or self._channel is None or self._channel.broken:
            await self.request({"op": "task", "task": task.model_dump_json().encode()}, {}, 0)
            self._task = task

    def nonsense(self, words: str) -> PredictionFailed:
        """End the process because its answer is invalid."""
        self.failures += 1
        who = self._who
        self._end()
        return PredictionFailed(f"{who} answers nonsense: {words}")

    async def _end_reason(self) -> str:
        """Text on how the process ended; it is killed if it has not."""
        channel, pid, who = self._channel, self.pid, self._who
        self._channel = self.pid = None
        why = "" if channel is None else channel.broken
        if channel is not None:
            channel.close()
        status = None if pid is None else await self._host.exit_status(pid)
        hangs = _HANGS in why
        how = "" if status is None or hangs else exit_words(status, "")
        return f"{who}: {how or why or 'it has ended'}"

    @property
    def _who(self) -> str:
        return "the model" if self.pid is None else "the model's process"

    def _end(self) -> None:
        channel, pid = self._channel, self.pid
        self._channel = self.pid = None
        if channel is not None:
            channel.close()
        if pid is not None:
            self._host.end(pid)


def require_answer(answer: Header) -> None:
    """Raises Refused if a servant has refused."""
    if "refused" in answer:
        reason = _REASONS.get(str(answer["refused"]), Reason.MALFORMED)
        raise Refused(reason, str(answer.get("words", ""))[:500])
