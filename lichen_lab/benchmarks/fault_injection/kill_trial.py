"""One seed of ``lichen bench kills``: a fleet that learns while its processes are killed, and the verdict."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection import kill_plan
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.trial import FaultTrial, run_in_folder
from lichen_lab.benchmarks.fault_injection.kill_plan import Kill
from lichen_lab.benchmarks.fault_injection.verdict import Verdict
from lichen_lab.simulation.processes.embedded_broker import free_port
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from protocol.errors import Transient
from protocol.topics import Kind

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
        accepted: updates in the journal.
        acknowledged: of those, the ones whose receipt was seen.
        waiting: of those, the ones whose receipt was not seen, and which their agent keeps.
        repeats: update messages beyond the first of each update.
        receipts_again: receipts beyond the first of each update.
        refusals: reason -> receipts that refuse (a late update of a closed round).
        compared: versions equal to the undisturbed fold, bit for bit.
        violations: broken promises, as text.
        folder: of all files, if it was kept.
    """

    seed: int
    rounds: int
    seconds: float = 0.0
    ended: bool = False
    kills: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    accepted: int = 0
    acknowledged: int = 0
    waiting: int = 0
    repeats: int = 0
    receipts_again: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    violations: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def sound(self) -> bool:
        """It ended, and every promise held."""
        return self.ended and not self.violations


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
        started, out = time.monotonic(), self.outcome
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
                    out.violations.append(str(error))
                finally:
                    striking.cancel()
                    await asyncio.gather(striking, return_exceptions=True)
            self._count()
            if out.ended:
                self._add(await self.verdict())
        finally:
            await asyncio.to_thread(self.close)
        out.seconds = time.monotonic() - started
        return out

    async def _strike_all(self) -> None:
        stage = self.stage
        for strike in kill_plan.plan(self.outcome.seed, self.outcome.rounds, (BROKER, COORDINATOR, *DEVICES)):
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
        out.violations += stage.deaths

    def _add(self, verdict: Verdict) -> None:
        out = self.outcome
        out.accepted, out.acknowledged, out.waiting = verdict.accepted, verdict.acknowledged, verdict.waiting
        out.compared = verdict.compared
        out.violations += verdict.violations


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
