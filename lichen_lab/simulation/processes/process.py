"""Child processes of the demo: each in its own process group, logged, restarted, and stopped in order."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protocol.errors import Transient
from runtime import exit_codes

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_PR_SET_PDEATHSIG: Final = 1
_RESTARTS: Final = 3
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child before exec: SIGTERM when the demo dies, even by SIGKILL. prctl(2), Linux."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ChildFailed(Transient):
    """A process ended that should not have; the message shows the end of its log."""


@dataclass
class Child:
    """One program: how to start it, and the process while it runs."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    started_at: float = 0.0

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
        self.started_at = time.monotonic()

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
        # What it left behind in its group.
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


class Nursery:
    """The demo's children: started, kept alive, killed on purpose, stopped."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._children: list[Child] = []
        self._expected: set[str] = set()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self.failed: asyncio.Future[ChildFailed] = asyncio.get_running_loop().create_future()
        self.before_restart: dict[str, Callable[[], None]] = {}
        """Child -> called before it is started again (a replaying agent moves its start on)."""

    async def start(self, child: Child, *, keep: bool = True) -> Child:
        """Start a child; ``keep`` starts it again when it ends by itself."""
        await child.start()
        self._children.append(child)
        if keep:
            self._keepers[child.name] = asyncio.create_task(self._keep(child), name=f"keep {child.name}")
        return child

    async def _keep(self, child: Child) -> None:
        while child.process is not None:
            code = await child.process.wait()
            if child.name in self._expected:
                return
            if code == exit_codes.CONFIG or child.starts > _RESTARTS:
                words = f"{child.name} ended with exit status {code}; {child.log} ends:\n{child.tail()}"
                if not self.failed.done():
                    self.failed.set_result(ChildFailed(words))
                return
            self._say(f"{child.name} died (exit status {code}); starting it again")
            await asyncio.sleep(1.0)
            await self.revive(child, guarded=False)

    async def kill(self, child: Child) -> None:
        """SIGKILL, on purpose: nobody restarts it before ``revive``."""
        self._expected.add(child.name)
        child.signal(signal.SIGKILL)
        if child.process is not None:
            await child.process.wait()

    async def revive(self, child: Child, *, guarded: bool = True) -> None:
        """Start a dead child again."""
        prepare = self.before_restart.get(child.name)
        if prepare is not None:
            prepare()
        await child.start()
        if guarded:
            self._expected.discard(child.name)
            self._keepers[child.name] = asyncio.create_task(self._keep(child), name=f"keep {child.name}")

    async def stop(self, *names: str) -> None:
        """Stop these children side by side (all: none named)."""
        chosen = [c for c in self._children if not names or c.name in names]
        self._expected.update(c.name for c in chosen)
        keepers = [self._keepers.pop(c.name) for c in chosen if c.name in self._keepers]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in chosen))
