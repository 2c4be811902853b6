"""One row of the matrix: a fleet that meets the same fault at every step of a round, a round for each step.

Between two rounds the coordinator is held at its judgement of the last version, so that every step begins
with everybody at rest, and holds are in place before anyone can come there.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection import refold
from lichen_lab.benchmarks.fault_injection.faults import InjectedFault
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.disks import FaultyDisk
from lichen_lab.benchmarks.fault_injection.harness.gated_worker import LIGHT
from lichen_lab.benchmarks.fault_injection.harness.gates import VARIABLE, StepGates
from lichen_lab.benchmarks.fault_injection.matrix_results import MatrixRow, StepResult
from lichen_lab.benchmarks.fault_injection.steps import STEPS, Step
from lichen_lab.benchmarks.fault_injection.verdict import judge
from lichen_lab.simulation.processes.embedded_broker import free_port
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from lichen_lab.simulation.processes.wire_observer import WireObserver
from models.contract import Blobs
from models.worker import job_folder
from protocol.tasks.task import Task
from protocol.topics import Kind
from runtime.settings.load import MqttSettings

DEVICES: Final = ("alectoria", "bryoria")
_STEP_S: Final = 90.0
"""Bound of each wait: for a step, for the end of its round."""
_SETTLE_S: Final = 0.3
_BARRIER: Final = "evaluate-{round}"


class FaultMatrix:
    """One fault at work.

    Args:
        root: an empty folder.
        fault: which.
        steps: at which steps.
        light: the initial model's file for processes without torch; None: everything is real.
    """

    target: Final = DEVICES[0]
    other: Final = DEVICES[1]

    def __init__(
        self, root: Path, fault: InjectedFault, steps: tuple[Step, ...] = STEPS, light: Path | None = None
    ) -> None:
        self.fault, self.steps, self._light = fault, steps, light
        port = free_port()
        self.proxies = {name: Proxy(port) for name in (self.target, COORDINATOR)}
        for proxy in self.proxies.values():
            proxy.start()
        ports = {name: proxy.port for name, proxy in self.proxies.items()}
        self.layout = small_fleet.files(root, port, DEVICES, ports)
        self.disks: dict[str, FaultyDisk] = {}
        self.gates = StepGates(root / "gates")
        self.task = small_fleet.task(len(steps), len(DEVICES), 0, min_devices=len(DEVICES), quorum=1.0)
        self._write(root)
        self.stage = small_fleet.trial_bed(self.layout, self._env(), gated=True)
        self.witness = WireObserver(
            MqttSettings.model_validate(self.layout.mqtt("witness")),
            small_fleet.FLEET,
            self.layout.state(COORDINATOR) / "updates",
            root / "frames",
        )
        self._before: Counter[tuple[Kind, str]] = Counter()

    def _write(self, root: Path) -> None:
        if self.fault.disks:
            for name in (self.target, COORDINATOR):
                self.disks[name] = FaultyDisk(root / f"{name}.ext4", self.layout.state(name))
        mqtt = {"ping_s": 0.5, "ping_timeout_s": 1.0} if "ping_s" in MqttSettings.model_fields else {}
        agents = {**small_fleet.GATED_AGENTS, "mqtt": mqtt}
        changes = {"agents": agents, COORDINATOR: {"export": {"enabled": True}, "mqtt": mqtt}}
        small_fleet.write(self.layout, self.task, 0, changes)

    def _env(self) -> dict[str, str]:
        return {VARIABLE: str(self.gates.folder)} | ({} if self._light is None else {LIGHT: str(self._light)})

    def _first(self, task: Task, folder: Path) -> Blobs:
        """The initial model, as it must be."""
        return refold.initial(task, folder) if self._light is None else job_folder.load_state(self._light)

    def gate(self, name: str, round_: int) -> str:
        """A gate's name in that round."""
        return name.format(round=round_, target=self.target, other=self.other)

    def seen(self, kind: Kind) -> int:
        """Messages of that kind to or from the target since its step's round was prepared."""
        key = (kind, self.target)
        return self.witness.traffic[key] - self._before[key]

    async def run(self) -> MatrixRow:
        """All steps, one a round; then judge the whole."""
        row = MatrixRow(self.fault.name, len(self.steps))
        try:
            async with self.stage as stage:
                await stage.start(BROKER)
                watching = asyncio.create_task(self.witness.run(), name="witness")
                try:
                    await self._all(row)
                    await asyncio.sleep(_SETTLE_S)
                finally:
                    self.witness.look()
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
            row.deaths = stage.deaths
            row.verdict = await asyncio.to_thread(
                judge, self.layout, self.task, self.witness, first=self._first
            )
        finally:
            for proxy in self.proxies.values():
                proxy.close()
            for disk in self.disks.values():
                await asyncio.to_thread(disk.close)
        return row

    async def _all(self, row: MatrixRow) -> None:
        stage = self.stage
        for number, step in enumerate(self.steps, start=1):
            barrier = () if number == len(self.steps) else (_BARRIER,)
            for name in (*step.held, *barrier):
                self.gates.hold(self.gate(name, number))
        await stage.start(COORDINATOR, restart="on-failure")
        await stage.start(self.target)
        if self.steps[0].name != "idle":
            await stage.start(self.other)
        for number, step in enumerate(self.steps, start=1):
            row.cells.append(await self._cell(number, step))
        await stage.until("the end of all rounds", self._finished, _STEP_S)

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
        begun = time.monotonic()
        await self.fault.harm(self, lambda: self._free(step, round_))
        if step.name == "idle":
            await stage.start(self.other)
        await self._until(step, "the end of its round", lambda: self._over(round_, step))
        took = time.monotonic() - begun
        trained, sent = self._spooled(round_), self.seen(Kind.UPDATE)
        return StepResult(self.fault.name, step.name, took, trained, sent, len(stage.deaths) - deaths)

    def _held(self, step: Step, round_: int) -> bool:
        return all(self.gates.reached(self.gate(name, round_)) for name in step.held)

    def _free(self, step: Step, round_: int) -> None:
        """Lift what held the step, and the slowness that made it last."""
        for name in step.held:
            self.gates.release(self.gate(name, round_))
        self.proxies[self.target].throttle(0)

    def _over(self, round_: int, step: Step) -> bool:
        last = round_ == len(self.steps)
        if step.name == "evaluating" or last:
            self.gates.release(self.gate(_BARRIER, round_))
            return self._finished() if last else self._round() > round_
        return self.gates.reached(self.gate(_BARRIER, round_))

    def _finished(self) -> bool:
        """Whether the coordinator has ended with status 0: all rounds are over."""
        return self.stage.ended(COORDINATOR)

    def _round(self) -> int:
        now = self.witness.view.round
        return 0 if now is None else now.round

    def _spooled(self, round_: int) -> int:
        """How often the target finished training in that round, by its log."""
        said = self.layout.log(self.target).read_text(errors="replace").splitlines()
        lines = (json.loads(line) for line in said if '"update_spooled"' in line and line.startswith("{"))
        return sum(1 for line in lines if line["round"] == round_)

    async def _until(self, step: Step, what: str, true: Callable[[], bool]) -> None:
        await self.stage.until(f"{self.fault.name} at {step.name!r}: {what}", true, _STEP_S)
