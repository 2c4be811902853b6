"""The processes of a trial: started, killed, started again; one that ends by itself is a finding.

Like a service manager, the stage starts again what died; unlike one, it writes down every death that the
trial did not cause.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.fleet_files import HOST, Layout
from lichen_lab.simulation.processes.process import ONE_THREAD, Child
from protocol.errors import Transient

BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
_LISTEN_S: Final = 15.0
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.3
_MOST_DEATHS: Final = 10
_WORDS: Final = 600
"""Characters of a dead process's last line."""


@dataclass
class Stage:
    """All processes of one trial; a context that stops what it started.

    Attributes:
        layout: where they live.
        kills: name -> how often it was killed on purpose.
        deaths: in words, each end that was not on purpose.
    """

    layout: Layout
    kills: dict[str, int] = field(default_factory=dict)
    deaths: list[str] = field(default_factory=list)
    commands: dict[str, list[str]] = field(default_factory=dict)
    """Name -> another command than the usual one."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to every process's environment."""

    def __post_init__(self) -> None:
        self.children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()
        self.finished = asyncio.Event()
        """The coordinator has ended with status 0: all rounds are over."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted.clear()
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        parts = [child for name, child in self.children.items() if name != BROKER]
        await asyncio.gather(*(child.stop() for child in parts))
        if BROKER in self.children:
            await self.children[BROKER].stop()

    async def start(self, name: str) -> Child:
        """Start a process, or start it again, and keep it alive from then on."""
        child = self.children.get(name)
        if child is None:
            env = ONE_THREAD | self.env
            child = self.children[name] = Child(name, self._command(name), self.layout.log(name), env)
        await child.start()
        self._wanted.add(name)
        if name == BROKER:
            await self._listening(child)
        self._keepers[name] = asyncio.create_task(self._keep(child), name=f"keep {name}")
        return child

    def _command(self, name: str) -> list[str]:
        if name in self.commands:
            return self.commands[name]
        if name == BROKER:
            return mosquitto.command(self.layout.root / "mosquitto", HOST, self.layout.port)
        words = ["coordinator", "serve"] if name == COORDINATOR else ["agent", "run"]
        return [sys.executable, "-P", "-m", "lichen", *words, "--config", str(self.layout.config(name))]

    async def _listening(self, child: Child) -> None:
        deadline = time.monotonic() + _LISTEN_S
        while not await _listens(self.layout.port):
            if child.pid is None or time.monotonic() > deadline:
                raise Transient(f"the broker does not listen; {child.log} ends:\n{child.tail()}")
            await asyncio.sleep(_LOOK_S)

    async def _keep(self, child: Child) -> None:
        """Wait for its end; one that nobody wanted is written down and mended, as a service manager would."""
        while child.process is not None:
            code = await child.process.wait()
            if child.name not in self._wanted:
                return
            if child.name == COORDINATOR and code == 0:
                self.finished.set()
                return
            self.deaths.append(f"{child.name} ended by itself with status {code}: {child.tail(1)[:_WORDS]}")
            await asyncio.sleep(_AGAIN_S)
            await child.start()

    async def kill(self, name: str) -> bool:
        """SIGKILL; False where it did not run any more."""
        child = self.children[name]
        await self._leave_alone(name)
        if child.pid is None or child.process is None:
            return False
        child.signal(signal.SIGKILL)
        await child.process.wait()
        self.kills[name] = self.kills.get(name, 0) + 1
        return True

    async def _leave_alone(self, name: str) -> None:
        """Nobody starts it again."""
        self._wanted.discard(name)
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def stop(self, name: str) -> int | None:
        """End it in order (SIGTERM); its exit status."""
        await self._leave_alone(name)
        return await self.children[name].stop()

    async def until(self, what: str, true: Callable[[], bool], timeout_s: float) -> None:
        """Wait until something is true.

        Raises:
            Transient: not in time; the message has the ends of all logs.
        """
        deadline = time.monotonic() + timeout_s
        while not true():
            if len(self.deaths) > _MOST_DEATHS:
                raise Transient("too many processes end by themselves")
            if time.monotonic() > deadline:
                ends = "\n".join(
                    f"--- {name}:\n{child.tail(3)[-_WORDS:]}" for name, child in self.children.items()
                )
                raise Transient(f"waited {timeout_s:g} s for {what}; the logs end:\n{ends}")
            await asyncio.sleep(_LOOK_S)


async def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False
