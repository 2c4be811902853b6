"""Runs TACTFL in one process with the product's client, codec, checks, weights, fold and training."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome, TactflSetting, UnlabelledFleet
from lichen_lab.benchmarks.studies.tactfl.shared import StudyCoordinator, chosen, task_of
from lichen_lab.benchmarks.study.federation import Federation, bytes_per_update, timed_run
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.device import VirtualDevice
from lichen_lab.simulation.training.guided import Guide
from models.guided import DeviceWeights
from protocol.tasks.task import Task


@timed_run
def run(fleet: UnlabelledFleet, setting: TactflSetting, seed: int, tell: Say) -> TactflOutcome:
    """TACTFL on a fleet (:data:`lichen_lab.benchmarks.study.run_spec.Run`); fine-tunes the last version."""
    task = task_of(fleet, setting, seed, setting.options)
    devices = [VirtualDevice(m.name, Fixed(m.windows), number) for number, m in enumerate(fleet.members)]
    federation = _Sampled(task, devices, setting, guide=Guide.of(task, fleet.labelled, seed))

    def play(round_: int) -> None:
        record = federation.round(round_)
        for warning in record.weighing.warnings if record.weighing else ():
            tell(f"round {round_}: {warning}")

    coordinator = StudyCoordinator.of(fleet, task, setting)
    outcome = coordinator.play_rounds(tell, play, lambda: federation.model, tuned=True)
    weighings = [record.weighing for record in federation.records]
    return replace(
        outcome,
        shares=shares([one for one in weighings if one]),
        bytes_up=bytes_per_update(federation.records)[0],
        refused=federation.refused,
    )


class _Sampled(Federation):
    """Some of the devices train in a round (``setting.chosen``).

    Args:
        task: of the run.
        devices: all of the fleet.
        setting: of the run.
        guide: the coordinator's half.
    """

    def __init__(
        self, task: Task, devices: Sequence[VirtualDevice], setting: TactflSetting, *, guide: Guide | None
    ) -> None:
        super().__init__(task, devices, guide=guide)
        self._setting = setting

    def before_round(self, round_: int) -> Sequence[VirtualDevice]:
        """The devices of a round."""
        return chosen(self.devices, self._setting, self.task.seed, round_)


def shares(weighings: Sequence[DeviceWeights]) -> dict[str, float]:
    """Device -> its mean weight over rounds and parts, relative to an equal weight (1)."""
    seen: dict[str, list[float]] = {}
    for weighing in weighings:
        for weights in weighing.weights.values():
            for device, weight in weights.items():
                seen.setdefault(device, []).append(weight * len(weights))
    return {device: fmean(values) for device, values in seen.items()}
