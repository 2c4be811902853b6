"""Child processes for work that must not run in a daemon: training, server halves that train, export.

Protocol of ``--serve``, JSON lines: in ``{"job": "<folder>"}``, out ``{"ok": true}`` or ``{"ok": false,
"error": "...", "kind": KIND}`` with KIND one of Misconfigured, Refused (with its ``reason``), Transient,
Unreachable, Fault. The child ends when its standard input ends, so it does not outlive a daemon that was
killed. A child for a single job answers with the same line, or with its exit status.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime import exit_codes
from runtime.process.exit_check import has_ended
from runtime.process.worker_turns import WorkerTurns

_log = structlog.get_logger(__name__)
_STDERR_BYTES: Final = 4096
_LINE_BYTES: Final = 1024 * 1024
_GOODBYE_S: Final = 5.0
_NOT_INHERITED: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LICHEN_STORAGE__URL", "PGPASSFILE", "PGPASSWORD", "PGSERVICEFILE"),
)
"""A child must not notify systemd in the daemon's name, nor open its database."""


class WorkerFailed(Transient):
    """The child did not finish its job. ``detail``: how it ended, and the end of its stderr."""

    def __init__(self, words: str, detail: str) -> None:
        super().__init__(f"{words}: {detail}" if detail else words)
        self.detail = detail


class Unreachable(Transient):
    """A service that the job needs cannot be reached now; the job itself is not at fault."""


class _Child:
    """A running process, its own process group, and the end of its stderr."""

    def __init__(self, process: asyncio.subprocess.Process, module: str) -> None:
        self.process = process
        self._module = module
        self._tail = b""
        self._reader = asyncio.ensure_future(self._drain())
        self._over = False

    async def _drain(self) -> None:
        if self.process.stderr is None:
            return
        while data := await self.process.stderr.read(_STDERR_BYTES):
            self._tail = (self._tail + data)[-_STDERR_BYTES:]
            _log.debug("worker_stderr", module=self._module, text=data.decode(errors="replace"))

    async def stderr_tail(self) -> str:
        """The end of stderr, once the process is over."""
        # A grandchild may hold the pipe open; wait for it only briefly.
        await asyncio.wait([self._reader], timeout=1.0)
        return self.stderr_so_far()

    def stderr_so_far(self) -> str:
        """Stderr of this job so far, its last 4 KB."""
        return self._tail.decode(errors="replace").strip()

    def clear_stderr(self) -> None:
        """Drop the stderr of earlier jobs, before a new one starts."""
        self._tail = b""

    async def end(self, patience_s: float = 0.0) -> None:
        """Close its stdin, wait ``patience_s``, then kill the whole process group; reap it. Idempotent."""
        if self._over:
            return
        self._over = True
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(patience_s):
                await self.process.wait()
        except TimeoutError:
            pass
        finally:
            # The group, even if its leader has ended: everything the worker started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
            await asyncio.wait([self._reader], timeout=1.0)
            self._reader.cancel()


@dataclass(eq=False, repr=False)
class Worker:
    """Runs jobs in a child process, one at a time.

    Args:
        module: started as ``python -P -m MODULE --serve`` (warm) or ``... JOBDIR``.
        python: the interpreter.
        idle_s: a warm child ends after this many seconds without a job, which frees its memory.
        env: added to the environment.
        warm: keep the child between jobs (imports and torch start-up happen once).
        hidden: paths that the child cannot open, if the kernel has Landlock
            (:mod:`runtime.process.hide_paths`).
        turns: shared with others, whose child processes it limits; None: there is no limit.
    """

    module: str
    python: str = sys.executable
    idle_s: float = 120.0
    env: Mapping[str, str] | None = None
    warm: bool = True
    hidden: Sequence[Path] = ()
    turns: WorkerTurns | None = None

    def __post_init__(self) -> None:
        self._through = (
            ["runtime.process.hide_paths", json.dumps([str(path) for path in self.hidden])]
            if self.hidden
            else []
        )
        self._env = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED} | dict(self.env or {})
        self._lock = asyncio.Lock()
        self._child: _Child | None = None
        self._idle: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The warm child's process id, or None."""
        return None if self._child is None else self._child.process.pid

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job, after the job before, and in its turn. Time-out and cancellation kill its group.

        Raises:
            WorkerFailed: it died, was killed, timed out, or met a fault; the detail has the end of its
                stderr.
            Misconfigured, Refused: reported by the worker.
        """
        job = os.path.abspath(job_dir)  # noqa: PTH100, ASYNC240 - a path as text; no file is accessed
        async with self._lock, self.turns.turn(self) if self.turns else contextlib.nullcontext():
            await self._stop_idle_timer()
            child = await self._ready(job)
            self._child, keep = child, False
            child.clear_stderr()
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await (self._ask(child, job) if self.warm else self._wait(child))
                keep = self.warm
            except TimeoutError:
                await child.end()
                words = f"{self.module} did not finish in {timeout_s:g} s and was killed"
                raise WorkerFailed(words, await child.stderr_tail()) from None
            finally:
                if not keep:
                    self._child = None
                    await asyncio.shield(child.end())
            self._start_idle_timer()
        self._raise_failure(answer, await self._stderr_so_far(child, answer))

    async def close(self) -> None:
        """End the child, if there is one; a running job is cut off."""
        await self._stop_idle_timer()
        child, self._child = self._child, None
        if child is not None:
            await child.end(0.0 if self._lock.locked() else _GOODBYE_S)

    async def _ready(self, job: str) -> _Child:
        """The warm child while it lives, else a new one."""
        child = self._child
        if child is not None and (child.process.returncode is not None or has_ended(child.process.pid)):
            how = status_words(await child.process.wait())
            _log.warning("idle_worker_gone", module=self.module, how=how)
            await child.end()
            child = None
        try:
            return child or await self._start(["--serve"] if self.warm else [job])
        except OSError as error:  # no memory, no processes left
            raise WorkerFailed(f"{self.module} could not be started", str(error)) from None

    async def _start(self, args: list[str]) -> _Child:
        process = await asyncio.create_subprocess_exec(
            self.python,
            "-P",  # does not import a folder of the working directory that is named like one of our packages
            "-m",
            *(*self._through, self.module, *args),
            stdin=asyncio.subprocess.PIPE if self.warm else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            start_new_session=True,
            close_fds=True,
            limit=_LINE_BYTES,
        )
        _log.info("worker_started", module=self.module, pid=process.pid)
        return _Child(process, self.module)

    async def _ask(self, child: _Child, job: str) -> dict[str, Any]:
        """Send a warm child its job and read the answer."""
        writer = child.process.stdin
        if writer is not None:
            with contextlib.suppress(ConnectionError):  # it died between two jobs: the read notices
                writer.write(json.dumps({"job": job}).encode() + b"\n")
                await writer.drain()
        answer = await self._read(child)
        if answer is not None:
            return answer
        words = status_words(await child.process.wait())
        raise WorkerFailed(f"{self.module} {words}", await child.stderr_tail())

    async def _wait(self, child: _Child) -> dict[str, Any]:
        """Wait for a child with a single job: its answer, or one made from its exit status."""
        answer = await self._read(child)
        status = await child.process.wait()
        words = await child.stderr_tail()
        if answer is not None:
            return answer
        if status == exit_codes.OK:
            return {"ok": True}
        if status == exit_codes.CONFIG:
            return {"ok": False, "kind": "Misconfigured", "error": words or self.module}
        raise WorkerFailed(f"{self.module} {status_words(status)}", words)

    async def _read(self, child: _Child) -> dict[str, Any] | None:
        """The next answer on standard output; None at its end. Other lines (of libraries) are skipped."""
        reader = child.process.stdout
        while reader is not None and (line := await _line(reader)):
            answer = _answer(line)
            if answer is not None:
                return answer
            _log.debug("worker_stdout", module=self.module, text=line.decode(errors="replace").rstrip())
        return None

    async def _stderr_so_far(self, child: _Child, answer: Mapping[str, Any]) -> str:
        if answer.get("ok") is True:
            return ""
        await asyncio.sleep(0.01)  # stderr is another pipe: let its last lines arrive
        return child.stderr_so_far()

    def _raise_failure(self, answer: Mapping[str, Any], stderr: str) -> None:
        if answer.get("ok") is True:
            return
        error = str(answer.get("error", "no reason given"))
        if stderr:
            _log.warning("worker_failed", module=self.module, error=error, stderr=stderr)
        match answer.get("kind"):
            case "Misconfigured":
                raise Misconfigured(error)
            case "Refused":
                raise _refused(answer.get("reason"), error)
            case "Unreachable":
                raise Unreachable(error)
            case _:
                raise WorkerFailed(f"{self.module}: {error}", stderr)

    def _start_idle_timer(self) -> None:
        if self._child is not None:
            self._idle = asyncio.ensure_future(self._end_when_idle(self._child))

    async def _stop_idle_timer(self) -> None:
        """Stop the idle timer."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()
            await asyncio.wait([idle])

    async def _end_when_idle(self, child: _Child) -> None:
        await asyncio.sleep(self.idle_s)
        if self._child is child:
            self._child = None
        await asyncio.shield(child.end(_GOODBYE_S))
        _log.info("idle_worker_left", module=self.module)


def status_words(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:  # longer than the limit; asyncio has dropped it
        return b"(a line that is too long)\n"


def _answer(line: bytes) -> dict[str, Any] | None:
    """The line as an answer, or None if a library printed it."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "ok" in answer else None


def _refused(reason: object, error: str) -> Refused:
    """The error with the worker's reason; an unknown one becomes MALFORMED."""
    return Refused(Reason(str(reason)) if reason in set(Reason) else Reason.MALFORMED, error)
