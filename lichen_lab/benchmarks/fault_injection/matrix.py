"""One row of the matrix: a fleet that meets the same fault at every step of a round, a round for each step.

Between two rounds the coordinator is held before its evaluation of the last version: every step begins with
an idle fleet, and gates are held before any process can reach them.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection.faults import InjectedFault
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.gates import VARIABLE, StepGates
from lichen_lab.benchmarks.fault_injection.harness.trial import FaultTrial
from lichen_lab.benchmarks.fault_injection.steps import STEPS, Step
from lichen_lab.benchmarks.fault_injection.verdict import Verdict
from lichen_lab.simulation.processes.embedded_broker import free_port
from lichen_lab.simulation.processes.fleet_files import Table
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from lichen_lab.simulation.processes.testbed import COORDINATOR
from protocol.topics import Kind

DEVICES: Final = ("alectoria", "bryoria")
_STEP_S: Final = 90.0
"""Bound of each wait: for a step, for the end of its round."""
_BARRIER: Final = "evaluate-{round}"


@dataclass
class StepResult:
    """The result at one step.

    Attributes:
        step: its name.
        seconds: from the beginning of the fault until the round was over.
        trained: how often the target agent trained in this round.
        sent: how often its update was sent.
        deaths: processes that ended by themselves meanwhile.
        leader_s: from the beginning of the fault (of the database: from its end) until another process led
            the rounds; None: none did.
    """

    step: str
    seconds: float
    trained: int
    sent: int
    deaths: int
    leader_s: float | None = None

    def words(self) -> str:
        """Text for the table."""
        extra = [
            "" if self.leader_s is None else f"another leader after {self.leader_s:.1f} s",
            f"trained {self.trained} times" if self.trained > 1 else "",
            f"{self.deaths} ended by themselves" if self.deaths else "",
        ]
        return "; ".join([f"round over after {self.seconds:.1f} s", *(one for one in extra if one)])


@dataclass
class MatrixRow:
    """One fault at all steps.

    Attributes:
        fault: its name.
        steps: how many there are.
        cells: in the order of the steps.
        verdict: on the whole run.
        deaths: processes that ended by themselves, as text.
    """

    fault: str
    steps: int
    cells: list[StepResult] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    deaths: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Every step was reached and every promise held."""
        return len(self.cells) == self.steps and not self.verdict.violations


class FaultMatrix(FaultTrial):
    """The trial of one fault.

    Args:
        root: an empty folder.
        fault: to inject.
        steps: at which it is injected.
        light: see :class:`FaultTrial`.
        coordinator: further tables of ``coordinator.toml``.
    """

    target: Final = DEVICES[0]
    other: Final = DEVICES[1]

    def __init__(
        self,
        root: Path,
        fault: InjectedFault,
        steps: tuple[Step, ...] = STEPS,
        light: Path | None = None,
        coordinator: Table | None = None,
    ) -> None:
        self.fault, self.steps = fault, steps
        port = free_port()
        self.proxies = {name: Proxy(port).start() for name in (self.target, COORDINATOR)}
        self.gates = StepGates(root / "gates")
        self._before: Counter[tuple[Kind, str]] = Counter()
        mqtt = {"mqtt": {"ping_s": 0.5, "ping_timeout_s": 1.0}}
        super().__init__(
            small_fleet.files(root, port, DEVICES, {name: one.port for name, one in self.proxies.items()}),
            # the evaluation of rows without torch never gains: without patience the rounds do not end early
            small_fleet.task(len(steps), len(DEVICES), 0, min_devices=len(DEVICES), quorum=1.0, patience=0),
            changes={
                "agents": {**small_fleet.GATED_AGENTS, **mqtt},
                COORDINATOR: {"export": {"enabled": True}, **mqtt, **(coordinator or {})},
            },
            env={VARIABLE: str(self.gates.folder)},
            gated=True,
            light=light,
            disks=(self.target, COORDINATOR) if fault.disks else (),
        )

    def gate(self, name: str, round_: int) -> str:
        """A gate's name in that round."""
        return name.format(round=round_, target=self.target, other=self.other)

    def seen(self, kind: Kind) -> int:
        """Messages of that kind to or from the target since its step's round was prepared."""
        key = (kind, self.target)
        return self.witness.traffic[key] - self._before[key]

    async def run(self) -> MatrixRow:
        """Run all steps, one a round; then check the whole run."""
        row = MatrixRow(self.fault.name, len(self.steps))
        try:
            async with self.running() as stage:
                await self._all(row)
            row.deaths = stage.deaths
            row.verdict = await self.verdict()
        finally:
            for proxy in self.proxies.values():
                proxy.close()
            await asyncio.to_thread(self.close)
        return row

    async def _all(self, row: MatrixRow) -> None:
        stage = self.stage
        for number, step in enumerate(self.steps, start=1):
            barrier = () if number == len(self.steps) else (_BARRIER,)
            for name in (*step.held, *barrier):
                self.gates.hold(self.gate(name, number))
        await self.start_coordinator()
        await stage.start(self.target)
        if self.steps[0].name != "idle":
            await stage.start(self.other)
        for number, step in enumerate(self.steps, start=1):
            row.cells.append(await self._cell(number, step))
        await stage.until("the end of all rounds", self.finished, _STEP_S)

    async def start_coordinator(self) -> None:
        """Start the coordinator."""
        await self.stage.start(COORDINATOR, restart="on-failure")

    async def _cell(self, round_: int, step: Step) -> StepResult:
        stage, deaths = self.stage, len(self.stage.deaths)
        self._before = Counter(self.witness.traffic)
        step.before(self, round_)
        if round_ > 1:
            self.gates.release(self.gate(_BARRIER, round_ - 1))
        if step.near is not None:
            await self._until(step, "the way to it", lambda: self._held(step, round_))
            step.near(self, round_)
        await self._until(step, "it", lambda: step.there(self, round_))
        begun, freed = time.monotonic(), asyncio.Event()

        def free() -> None:
            self._free(step, round_)
            freed.set()

        harming = asyncio.create_task(self.fault.harm(self, free), name=self.fault.name)
        try:
            while not (freed.is_set() or harming.done()):
                await stage.rest()
            if step.name == "idle":
                await stage.start(self.other)
            await self._until(step, "the end of its round", lambda: self._over(round_, step))
            took = time.monotonic() - begun
            await harming  # a long fault lasts beyond the end of its round
        finally:
            harming.cancel()
            await asyncio.wait([harming])
        trained, sent = self._spooled(round_), self.seen(Kind.UPDATE)
        return StepResult(step.name, took, trained, sent, len(stage.deaths) - deaths)

    def _held(self, step: Step, round_: int) -> bool:
        return all(self.gates.reached(self.gate(name, round_)) for name in step.held)

    def _free(self, step: Step, round_: int) -> None:
        """Open the gates of the step, and end the slowness that prolonged it."""
        for name in step.held:
            self.gates.release(self.gate(name, round_))
        self.proxies[self.target].throttle(0)

    def _over(self, round_: int, step: Step) -> bool:
        last = round_ == len(self.steps)
        if step.name == "evaluating" or last:
            self.gates.release(self.gate(_BARRIER, round_))
            return self.finished() if last else self.round > round_
        return self.gates.reached(self.gate(_BARRIER, round_))

    def _spooled(self, round_: int) -> int:
        """How often the target finished training in that round, by its log."""
        log = self.layout.log(self.target).read_text(errors="replace").splitlines()
        lines = (json.loads(line) for line in log if '"update_spooled"' in line and line.startswith("{"))
        return sum(1 for line in lines if line["round"] == round_)

    async def _until(self, step: Step, what: str, true: Callable[[], bool]) -> None:
        await self.stage.until(f"{self.fault.name} at {step.name!r}: {what}", true, _STEP_S)
