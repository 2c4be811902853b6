"""A simulated machine: it runs a real daemon, life after life, on the disk of the last life.

A life ends when the process is killed, when the power is cut (at any moment, also inside of a write), or in
order. The disk of the next life is what the last one left there at that instant; ``systemd`` starts it again.
"""

import asyncio
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any, Final, Protocol

from lichen_lab.simulation.deterministic.machine.clock import NodeClock
from lichen_lab.simulation.deterministic.machine.disk import SimDisk, start
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.process_life import ProcessLife
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation
from lichen_lab.simulation.deterministic.scenario.invariants import GroundTruth
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.process import daemon

_STOP_S: Final = 30.0
"""Bound of an orderly stop."""
_GIVES_UP: Final = (exit_codes.CONFIG, exit_codes.TEMPFAIL)
_AGAIN_S: Final = 5.0
"""After a failure, ``systemd`` (or a person, after exit status 78) starts the daemon again."""


class Surroundings(Protocol):
    """What a node needs of its simulation."""

    scenario: Scenario
    task: Task
    truth: GroundTruth
    folder: Path

    def link_maker(self, node: "Node") -> Callable[..., Any]:
        """Makes the links of this life, as the constructor of ``runtime.mqtt.link.Link``."""

    def model_runs(self, device: str, digest: str) -> None:
        """A device activates a model."""

    def stable_digests(self) -> tuple[str, ...]:
        """Of the release that all devices should run; empty if there is none."""

    def say(self, words: str) -> None:
        """Write a line of the trace."""

    def count(self, what: str) -> None:
        """Count a fault that came about."""

    def fail(self, error: BaseException) -> None:
        """Report a broken promise; the simulation ends."""


class Node(ABC):
    """One machine; :meth:`begin` switches it on."""

    interleaves = False
    """Its threads wait in the middle of their work."""
    most_tasks = 90
    """Of its process: services, messages in flight, timers."""

    def __init__(self, world: Surroundings, name: str, loop: SimLoop) -> None:
        self.world = world
        self.name = name
        self.loop = loop
        self.lives = 0
        self.life = ProcessLife(name)
        self.life.dead = True
        self.disk: SimDisk
        self.clock: NodeClock
        self.task: asyncio.Task[int] | None = None
        self.stopping = self.was_frozen = False
        self._down_s = 1.0
        self._moments = 0
        self._by_itself = False
        self._wrong_by_s = 0.0
        self._trouble = 0
        self._troubled_life = False
        self._root = world.folder / name / "0"

    @property
    def is_up(self) -> bool:
        """Whether the daemon runs."""
        return not self.life.dead and self.task is not None and not self.task.done()

    @property
    def moments(self) -> int:
        """Moments at which its lives could have ended, all together."""
        return self._moments + self.life.moments

    def rng(self, what: str) -> random.Random:
        """Random numbers for one purpose in this life."""
        return random.Random(f"{self.world.scenario.seed} {self.name} {self.lives} {what}")  # noqa: S311 - a seed

    def begin(self) -> None:
        """Start a life, unless one is there."""
        if self.is_up:
            return
        self.lives += 1
        self._moments += self.life.moments
        self.stopping, self._by_itself, self._down_s, self.was_frozen = False, False, 1.0, False
        life = self.life = ProcessLife(self.name, self.lives, interleaves=self.interleaves)
        self.disk = SimDisk(self._root, f"{self.world.scenario.seed} {self.name} {self.lives}", life=life)
        self.disk.trouble, self._troubled_life = self._trouble, bool(self._trouble)
        uptime = self.rng("uptime").uniform(0.0, 1e5)
        self.clock = NodeClock(self.loop, wrong_by_s=self._wrong_by_s, uptime_s=uptime)
        life.on_end.append(self._died)
        self.world.say(f"{self.name} begins life {self.lives}")
        self.task = start(life, self.disk, self._main)
        self.task.add_done_callback(self._ended, context=Context())

    @abstractmethod
    async def run(self) -> int:
        """Run the daemon to its exit status."""

    async def _main(self) -> int:
        try:
            return await self.run()
        except Exception as error:  # noqa: BLE001 - the last place, as in runtime.process.daemon.run
            return daemon.report(error)

    def _died(self, what: str) -> None:
        """At the instant of death: keep the disk for the next life."""
        self.loop.thaw(self.life)
        if self._by_itself:
            return
        after = self.world.folder / self.name / str(self.lives)
        self.disk.freeze(after, power=self.life.power)
        self._root, self._wrong_by_s = after, self.clock.wrong_by_s
        self.world.say(f"{self.name} dies: {what}")
        self._later(self._down_s, self.begin)

    def _ended(self, task: asyncio.Task[int]) -> None:
        if self.life.dead or task is not self.task:
            return  # it was killed: later actions of its task do not count
        self._by_itself = True
        self.life.end("the process ended", power=False)
        self._wrong_by_s = self.clock.wrong_by_s
        error = None if task.cancelled() else task.exception()
        status = exit_codes.SOFTWARE if task.cancelled() or error is not None else task.result()
        self.world.say(f"{self.name} ends with status {status}")
        if status == exit_codes.OK and self.stopping:
            self._later(self._down_s, self.begin)
        elif why := self.may_end(status):
            self.world.count(f"{self.name} gave up{why}")
            self._later(_AGAIN_S, self.begin)
        else:
            because = f": {type(error).__name__}: {error}" if error is not None else ""
            self.world.fail(Violation(f"{self.name} ended with exit status {status}{because}"))

    def may_end(self, status: int) -> str:
        """Why the daemon may end by itself with this status; empty if it may not."""
        return " on its disk" if self._troubled_life and status in _GIVES_UP else ""

    def kill(self, *, power: bool, down_s: float) -> bool:
        """End this life now. False if there is none."""
        if not self.is_up:
            return False
        self._down_s = down_s
        self.life.end("the power is cut" if power else "SIGKILL", power=power)
        return True

    def kill_at(self, moments: int, down_s: float, *, power: bool) -> bool:
        """End this life at the n-th moment from now on."""
        if not self.is_up or self.life.crash_at > self.life.moments:
            return False
        self._down_s, self.life.power = down_s, power
        self.life.crash_at = self.life.moments + moments
        return True

    def spare(self) -> None:
        """Cancel a planned power cut."""
        self.life.crash_at = 0

    def freeze(self, seconds: float) -> bool:
        """Stop the process for a while, in the middle of whatever it does (SIGSTOP, then SIGCONT)."""
        if not self.is_up or self.loop.is_frozen(self.life):
            return False
        self.loop.freeze(self.life)
        self.was_frozen = True
        self._later(seconds, self.loop.thaw, self.life)
        return True

    def stop(self, down_s: float) -> bool:
        """Ask for an orderly stop."""
        if not self.is_up or self.stopping or not self.life.signal(signal.SIGTERM):
            return False
        self.stopping, self._down_s = True, down_s
        self._later(_STOP_S, self._must_be_over, self.lives)
        return True

    def _must_be_over(self, life: int) -> None:
        if self.lives == life and self.is_up and not self.was_frozen:
            self.world.fail(Violation(f"{self.name} did not stop within {_STOP_S:g} s"))

    def trouble(self, code: int) -> None:
        """Let the disk fail with this ``errno`` from now on; 0: let it work again."""
        self._trouble = code
        self._troubled_life = self._troubled_life or bool(code)
        if self.is_up:
            self.disk.trouble = code

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        if self.is_up:
            self.clock.jump(seconds)
        else:
            self._wrong_by_s += seconds

    def rot(self, which: int) -> str:
        """Flip a bit in a file that the node checks when it reads it; returns its name."""
        files = sorted(
            p for p in self._root.rglob("*") if p.is_file() and self.may_rot(p.relative_to(self._root))
        )
        if not files:
            return ""
        chosen = files[which % len(files)]
        return str(chosen.relative_to(self._root)) if self.disk.rot(chosen) else ""

    def file(self, name: str) -> bytes | None:
        """A file of its disk as it is now, read from outside; None: it is not there."""
        path = self._root / name
        return path.read_bytes() if path.is_file() else None

    def is_durable(self, name: str) -> bool:
        """Whether a file of its disk would survive a power cut now."""
        return self.disk.is_durable(self._root / name)

    @abstractmethod
    def may_rot(self, path: Path) -> bool:
        """Whether the node checks this file (a path relative to its folder)."""

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self.loop.call_later(seconds, call, *args, context=Context())

    def aside(self, look: Callable[[], None]) -> None:
        """Inspect the node from outside: without moments, without its disk."""
        if not self.life.dead:
            try:
                Context().run(look)
            except Exception as error:  # noqa: BLE001 - a broken promise, or a fault of the observer: both end the world
                self.world.fail(error)
