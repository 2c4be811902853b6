"""A child process: in its own process group, logged, and ended with all that it started."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
Restart = Literal["always", "on-failure", "no"]


def _die_with_parent() -> None:
    """In the child before exec: SIGTERM when the parent dies, even by SIGKILL. prctl(2), Linux."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """One program: its command, and the process while it runs."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    restart: Restart = "always"
    """When to start it again after it ended by itself; with "on-failure" and "no", status 0 is success."""
    process: asyncio.subprocess.Process | None = None
    starts: int = 0

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        running = self.process is not None and self.process.returncode is None
        return self.process.pid if running and self.process else None

    async def start(self) -> None:
        """Start it; standard output and error go to the end of its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as sink:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **self.env},
                start_new_session=True,
                preexec_fn=self._prepare,
            )
        self.starts += 1

    def _prepare(self) -> None:
        _die_with_parent()
        if self.nice:
            os.nice(self.nice)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole process group, if it runs."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(self, grace_s: float = 8.0) -> int | None:
        """SIGTERM, and SIGKILL to the whole group when that was not enough in ``grace_s``."""
        if self.process is None:
            return None
        if self.pid is not None:
            # To the process alone: it ends its own children in its own order.
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), grace_s)
            except TimeoutError:
                self.signal(signal.SIGKILL)
                await self.process.wait()
        # Processes that it left in its group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        if not self.log.is_file():
            return "(no log)"
        with self.log.open("rb") as source:
            source.seek(max(0, self.log.stat().st_size - 8192))
            text = source.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])
