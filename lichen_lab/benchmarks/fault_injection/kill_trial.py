"""One seed of ``lichen bench kills``: a fleet that learns while its processes are killed, and the verdict."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.trial import FaultTrial, run_in_folder
from lichen_lab.benchmarks.fault_injection.verdict import Verdict
from lichen_lab.simulation.processes.embedded_broker import free_port
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from protocol.errors import Transient
from protocol.topics import Kind

_FIRST_S: Final = 1.2
"""Latest moment of a strike after its round was first seen: about the length of a round."""
_SOON_S: Final = 0.04
"""Latest moment after a message was seen: its effect is then being written or answered."""
_ON: Final = (Kind.OFFER, Kind.FETCH, Kind.UPDATE, Kind.RECEIPT, Kind.ROUND)
_AIMED: Final = 0.5
"""Share of strikes that wait for such a message."""
_AWAY_S: Final = (0.05, 0.8)
_SECOND: Final = 0.3
"""Share of rounds with a second strike."""
_ALL: Final = 0.06
"""Share of strikes that kill every process at once, like a power cut."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL for some processes.

    Attributes:
        round: the plan waits until this round is first seen.
        on: then for the next message of this kind, if any, for a limited time.
        after_s: time from then on.
        victims: killed at one moment.
        away_s: until they are started again.
    """

    round: int
    on: Kind | None
    after_s: float
    victims: tuple[str, ...]
    away_s: float

    def words(self) -> str:
        """A line of text."""
        moment = f"round {self.round}" + ("" if self.on is None else f", {self.on.value}")
        return f"{moment} + {self.after_s:.2f} s: {', '.join(self.victims)} for {self.away_s:.2f} s"


def plan(seed: int, rounds: int, victims: Sequence[str]) -> list[Kill]:
    """The strikes, drawn before the run, so that a seed names one plan.

    One or two in every round; each process is a victim once before any is twice.
    """
    rng = random.Random(f"strikes/{seed}")  # noqa: S311 - a plan that a seed names
    bag: list[str] = []
    strikes = []
    for number in range(1, rounds + 1):
        for _ in range(1 + (rng.random() < _SECOND)):
            if rng.random() < _ALL:
                chosen = tuple(victims)
            else:
                if not bag:
                    bag = rng.sample(list(victims), len(victims))
                chosen = (bag.pop(),)
            on = rng.choice(_ON) if rng.random() < _AIMED else None
            after_s = rng.uniform(0, _FIRST_S if on is None else _SOON_S)
            strikes.append(Kill(number, on, after_s, chosen, rng.uniform(*_AWAY_S)))
    return strikes


DEVICES: Final = ("alectoria", "bryoria", "cetraria")
_ROUND_S: Final = 15.0
"""Bound of an average round."""
_START_S: Final = 60.0
_AIM_S: Final = 2.0

Tell = Callable[[int, int], None]
"""Takes the open round, and the number of kills."""


@dataclass
class KillOutcome:
    """The result of one seed.

    Attributes:
        seed: of strikes, recordings and training.
        rounds: asked for.
        seconds: from the first process to the verdict.
        ended: the coordinator finished all rounds.
        kills: name -> SIGKILLs.
        restarts: processes that were started again.
        verdict: on the whole run.
        repeats: update messages beyond the first of each update.
        receipts_again: receipts beyond the first of each update.
        refusals: reason -> receipts that refuse (a late update of a closed round).
        folder: of all files, if it was kept.
    """

    seed: int
    rounds: int
    seconds: float = 0.0
    ended: bool = False
    kills: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    repeats: int = 0
    receipts_again: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def sound(self) -> bool:
        """It ended, and every promise held."""
        return self.ended and not self.verdict.violations


class KillTrial(FaultTrial):
    """The trial of one seed.

    ``power``: a kill of a daemon is a power cut to its disk as well. ``light``: the initial model's file for
    processes without torch; None: everything is real.
    """

    def __init__(
        self,
        root: Path,
        seed: int,
        rounds: int,
        tell: Tell,
        *,
        power: bool = False,
        light: Path | None = None,
    ) -> None:
        self.outcome = KillOutcome(seed, rounds)
        self._tell = tell
        # odd seeds wait for every device, so that a killed agent delays its round; even ones for all but one
        quorum = {"quorum": 1.0} if seed % 2 else {}
        super().__init__(
            small_fleet.files(root, free_port(), DEVICES),
            small_fleet.task(rounds, len(DEVICES), seed, **quorum),
            seed=seed,
            changes={} if light is None else {"agents": small_fleet.GATED_AGENTS},
            gated=light is not None,
            light=light,
            disks=(COORDINATOR, *DEVICES) if power else (),
        )

    async def run(self) -> KillOutcome:
        """Run to the end, or to the time limit; then check."""
        started, out, broken = time.monotonic(), self.outcome, list[str]()
        try:
            async with self.running() as stage:
                striking = asyncio.create_task(self._strike_all(), name="strikes")
                try:
                    await stage.start(COORDINATOR, restart="on-failure")
                    for name in DEVICES:
                        await stage.start(name)
                    limit = _START_S + _ROUND_S * out.rounds
                    await stage.until(f"the end of {out.rounds} rounds", self.finished, limit)
                    out.ended = True
                except Transient as error:
                    broken.append(str(error))
                finally:
                    striking.cancel()
                    await asyncio.gather(striking, return_exceptions=True)
            self._count()
            if out.ended:
                out.verdict = await self.verdict()
            out.verdict.violations += [*broken, *self.stage.deaths]
        finally:
            await asyncio.to_thread(self.close)
        out.seconds = time.monotonic() - started
        return out

    async def _strike_all(self) -> None:
        stage = self.stage
        for strike in plan(self.outcome.seed, self.outcome.rounds, (BROKER, COORDINATOR, *DEVICES)):
            while self.round < strike.round:
                self.witness.changed.clear()
                await self.witness.changed.wait()
            self._tell(self.round, sum(stage.kills.values()))
            if strike.on is not None:
                await self._seen(strike.on)
            await asyncio.sleep(strike.after_s)
            if self.finished():
                return
            struck = await self._strike(strike)
            await asyncio.sleep(strike.away_s)
            # the broker first: the others would only wait for it
            for name in sorted(struck, key=lambda name: name != BROKER):
                await stage.start(name)

    async def _strike(self, strike: Kill) -> list[str]:
        """Kill all victims at one moment; returns those that were running."""
        lost = [self.disks[name] for name in strike.victims if name in self.disks]
        for disk in lost:
            await asyncio.to_thread(disk.fail)
        struck = [name for name in strike.victims if await self.stage.kill(name)]
        for disk in lost:
            await asyncio.to_thread(disk.repair)
        return struck

    async def _seen(self, kind: Kind) -> None:
        """Wait for the next message of that kind, at most :data:`_AIM_S`."""
        witness = self.witness
        before = witness.count(kind)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AIM_S):
                while witness.count(kind) == before:
                    witness.changed.clear()
                    await witness.changed.wait()

    def _count(self) -> None:
        out, stage, witness = self.outcome, self.stage, self.witness
        out.kills = dict(sorted(stage.kills.items()))
        out.restarts = sum(child.starts - 1 for child in stage.children.values())
        out.repeats = sum(witness.sent.values()) - len(witness.sent)
        out.receipts_again = sum(witness.receipts.values()) - len(witness.receipts)
        out.refusals = dict(witness.refusals)


def run(
    seed: int,
    rounds: int,
    tell: Tell,
    keep: Path | None = None,
    *,
    power: bool = False,
    light: Path | None = None,
) -> KillOutcome:
    """Run one seed.

    Args:
        seed: of the plan of kills, the data and the training.
        rounds: number of rounds.
        tell: called during the run.
        keep: parent of the folder of a run that was not sound; None: it is removed.
        power: the disks of killed daemons lose all unsynced writes (Linux, root).
        light: see :class:`KillTrial`.

    Raises:
        Misconfigured: Mosquitto, or a requirement of the disks, is missing.
    """
    outcome, folder = run_in_folder(
        f"kills-{seed}",
        keep,
        lambda root: KillTrial(root, seed, rounds, tell, power=power, light=light).run(),
    )
    outcome.folder = folder
    return outcome
