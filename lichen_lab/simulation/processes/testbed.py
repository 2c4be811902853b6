"""Real processes under one folder: start, keep alive, kill on purpose, stop in order, wait for conditions.

Like a service manager it restarts processes that die; unlike one, it records every death that was not on
purpose.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from lichen_lab.simulation.processes.embedded_broker import HOST
from lichen_lab.simulation.processes.fleet_files import FleetFiles
from lichen_lab.simulation.processes.process import Child, Restart
from protocol.errors import Transient
from runtime import exit_codes

BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
_LISTEN_S: Final = 20.0
_LOOK_S: Final = 0.02
_LAST_LINE: Final = 600
"""Characters of a dead process's last line."""

Condition = Callable[[], bool] | Callable[[], Awaitable[bool]]


def lichen(*words: str) -> list[str]:
    """The command line ``lichen WORDS`` in this environment."""
    return [sys.executable, "-P", "-m", "lichen", *words]


class Testbed:
    """A context that stops its processes at the end: agents first, then the coordinator, the broker last.

    Args:
        files: where configurations, state and logs are.
        commands: name -> another command than the usual one.
        env: added to every process's environment.
        restarts: of a process that ends by itself; after one more, waits fail.
        pause_s: before it is started again.
        fatal: exit statuses without restart.
        say: called with each death.
    """

    __test__ = False  # its name begins like a test's

    def __init__(
        self,
        files: FleetFiles,
        *,
        commands: Mapping[str, Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
        restarts: int = 3,
        pause_s: float = 1.0,
        fatal: Collection[int] = (exit_codes.CONFIG,),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.files = files
        self.children: dict[str, Child] = {}
        self.kills: Counter[str] = Counter()
        """Name -> kills on purpose."""
        self.deaths: list[str] = []
        """Ends of kept processes that were not on purpose, in words."""
        self.failure: Transient | None = None
        """A process failed for good; the message shows the end of its log."""
        self.before_restart: dict[str, Callable[[], None]] = {}
        """Name -> called before it is started again."""
        self._commands, self._env, self.say = commands or {}, env or {}, say
        self._restarts, self._pause_s, self._fatal = restarts, pause_s, fatal
        self._died: Counter[str] = Counter()
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(*(name for name in self.children if name not in {COORDINATOR, BROKER}))
        await self.stop(COORDINATOR)
        await self.stop(BROKER)

    async def start(
        self,
        name: str,
        command: Sequence[str] = (),
        *,
        restart: Restart = "always",
        env: Mapping[str, str] | None = None,
        nice: int = 0,
    ) -> Child:
        """Start a process, or start a known one again; a broker listens when this returns.

        Args:
            name: of the process, its configuration and its log.
            command: empty: that of the daemon whose configuration has this name.
            restart: what happens when it ends by itself.
            env: added to the environment.
            nice: its niceness.

        Raises:
            Transient: the broker does not listen.
        """
        if command or name not in self.children:
            argv, own = command or self.command(name), {**self._env, **(env or {})}
            self.children[name] = Child(name, argv, self.files.log(name), own, nice, restart)
        child = self.children[name]
        await self._begin(child)
        if name == BROKER:
            await self._listening(child)
        self._keepers[name] = asyncio.create_task(self._keep(child), name=f"keep {name}")
        return child

    def command(self, name: str) -> Sequence[str]:
        """The command of a daemon."""
        words = ("coordinator", "serve") if name == COORDINATOR else ("agent", "run")
        return self._commands.get(name) or lichen(*words, "--config", str(self.files.config(name)))

    async def _begin(self, child: Child) -> None:
        prepare = self.before_restart.get(child.name)
        if child.starts and prepare is not None:
            prepare()
        await child.start()

    async def _listening(self, broker: Child) -> None:
        deadline = time.monotonic() + _LISTEN_S
        while not await _listens(self.files.port):
            if broker.pid is None or time.monotonic() > deadline:
                raise Transient(f"the broker does not listen; {broker.log} ends:\n{broker.tail()}")
            await asyncio.sleep(_LOOK_S)

    async def _keep(self, child: Child) -> None:
        """Wait for its end; record an end that was not on purpose, and restart the process."""
        while child.process is not None:
            code = await child.process.wait()
            if code == 0 and child.restart != "always":
                return
            self._died[child.name] += 1
            if child.restart == "no" or code in self._fatal or self._died[child.name] > self._restarts:
                words = f"{child.name} ended with exit status {code}; {child.log} ends:\n{child.tail()}"
                self.failure = self.failure or Transient(words)
                return
            last = child.tail(1)[:_LAST_LINE]
            self.deaths.append(f"{child.name} ended by itself with status {code}: {last}")
            self.say(f"{child.name} died (exit status {code}); starting it again")
            await asyncio.sleep(self._pause_s)
            await self._begin(child)

    async def kill(self, name: str) -> bool:
        """SIGKILL to its process group, without restart. False if it did not run."""
        child = self.children[name]
        await self._leave_alone(name)
        if child.pid is None or child.process is None:
            return False
        child.signal(signal.SIGKILL)
        await child.process.wait()
        self.kills[name] += 1
        return True

    async def stop(self, *names: str) -> None:
        """Stop these in parallel (SIGTERM), without restart."""
        await self._leave_alone(*names)
        await asyncio.gather(*(self.children[name].stop() for name in names if name in self.children))

    async def _leave_alone(self, *names: str) -> None:
        keepers = [self._keepers.pop(name) for name in names if name in self._keepers]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    def ended(self, name: str) -> bool:
        """Whether it has ended with status 0."""
        process = self.children[name].process if name in self.children else None
        return process is not None and process.returncode == 0

    def said(self, name: str) -> str:
        """Its log so far."""
        file = self.files.log(name)
        return file.read_text(errors="replace") if file.is_file() else ""

    async def until(self, what: str, true: Condition, timeout_s: float) -> None:
        """Wait until something is true.

        Raises:
            Transient: it was not in time, or a process ended for good; the message has the ends of logs.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = true()
            if await found if inspect.isawaitable(found) else found:
                return
            if self.failure is not None:
                raise self.failure
            if time.monotonic() > deadline:
                raise Transient(f"waited {timeout_s:g} s for {what}; {self.why()}")
            await self.rest()

    async def rest(self) -> None:
        """Pause between two looks of a wait."""
        await asyncio.sleep(_LOOK_S)

    def why(self) -> str:
        """Ends of all logs, for the message of a failed wait."""
        ends = (f"--- {name}:\n{child.tail(3)[-_LAST_LINE:]}" for name, child in self.children.items())
        return "the logs end:\n" + "\n".join(ends)


async def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False
