"""Runs DisentAFL in one process with the product's client, router, codec, checks and fold.

Bytes are those of frames: the update as spooled, and each blob of a route that the device does not have yet.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from coordinator.selection.policies import PastRound, SelectionInput, policy
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.disentafl.scores import score
from lichen_lab.benchmarks.studies.disentafl.settings import (
    NETWORK,
    DisentAflOutcome,
    DisentAflSetting,
    Scores,
    TargetFleet,
    fleet_mean,
    looks,
)
from lichen_lab.benchmarks.study import federation as study
from lichen_lab.benchmarks.study.federation import StudyDevice
from lichen_lab.simulation.training.downlink.downloads import Downloads
from models.contract import Blobs, FloatArray, LocalResult, WindowSet, blob_of
from models.data import window_set
from models.registry import method
from models.tensors import apply, flatten, unflatten
from protocol.output_names import output_names, outputs
from protocol.tasks.task import Target, Task

NAME = "disentafl"
"""Name of the method and of its folder."""
DOMAIN = "domain/"
"""Of the names of blobs of domain experts."""
_OUR_OWN = ("devices_per_round", "selection", "uplink")
"""Options of the run; all others belong to the method."""


def task_of(fleet: TargetFleet, setting: DisentAflSetting, seed: int) -> Task:
    """The fleet's task, with the study's network and the method's options."""
    options = dict(setting.options)
    ours = {name: options.pop(name) for name in _OUR_OWN if name in options}
    config = {name: getattr(setting, name) for name in NETWORK} | options
    changed = {
        "rounds": {"count": setting.rounds, "devices_per_round": ours.get("devices_per_round")}
        | ({"selection": ours["selection"]} if "selection" in ours else {}),
        "uplink": {"codec": ours.get("uplink", "int8")},
    }
    known = fleet.task.model_dump()
    return Task.model_validate(known | changed | {"method": NAME, "config": config, "seed": seed})


class TargetFederation(study.Federation):
    """One run."""

    def __init__(self, fleet: TargetFleet, setting: DisentAflSetting, seed: int) -> None:
        devices = [
            StudyDevice.of(m.name, number, m.profile, m.train, look=self._look)
            for number, m in enumerate(fleet.members)
        ]
        super().__init__(task_of(fleet, setting, seed), devices, down=Downloads())
        self.fleet = fleet
        self.members = {member.name: member for member in fleet.members}
        self.everybody = {device.name: device for device in devices}
        self.personal: Scores = {}
        self.domains: dict[str, Counter[str]] = {name: Counter() for name in self.everybody}
        self._moved: dict[str, Sequence[str]] = {}
        self._history: list[PastRound] = []

    def before_round(self, round_: int) -> Sequence[StudyDevice]:
        """The devices that the task's policy selects; in the last round all devices."""
        rounds = self.task.rounds
        self._moved, self.personal = {}, {}
        if rounds.devices_per_round is None or round_ == rounds.count:
            return list(self.everybody.values())
        counts = {name: window_set.counts(m.train, self.task) for name, m in self.members.items()}
        routes = {name: self.site.server.route(self.task, m.profile) for name, m in self.members.items()}
        seed = int(np.random.SeedSequence([self.task.seed, round_]).generate_state(1)[0])
        draw = SelectionInput(
            counts,
            rounds.devices_per_round,
            seed,
            rounds=rounds,
            routes=routes,
            history=self._history,
            experts=method(NAME).experts,
        )
        return [self.everybody[name] for name in policy(rounds.selection).choose(draw).devices]

    def _look(self, device: StudyDevice, route: Blobs, result: LocalResult) -> None:
        """Score a device's own model after its training, in rounds that are evaluated."""
        moved = self._moved[device.name] = sorted({blob_of(name) for name in result.tensors})
        self.domains[device.name].update({domain_of(blob) for blob in moved if blob.startswith(DOMAIN)})
        if looks(len(self.records) + 1, self.task.rounds.count):
            self.personal[device.name] = self.judged(device.name, after(route, result))

    def play(self, round_: int) -> float | None:
        """Play one round; returns the mean of the personal scores if they were evaluated."""
        record = self.round(round_)
        losses = {name: told["loss"] for name, told in record.accepted.items() if "loss" in told}
        self._history.append(PastRound(round_, frozenset(self._moved), losses, self._moved))
        return fleet_mean(self.personal) if self.personal else None

    def judged(self, name: str, state: Blobs) -> dict[str, float]:
        """Scores of a model on a device's test windows."""
        member, model = self.members[name], self.site.client.inference_model(self.task, state)
        return score(self.fleet, member, predicted(model, member.test, self.task))

    def aggregate(self, *, own: bool = True) -> Scores:
        """Scores of the model that each device gets before it trains again.

        Args:
            own: with what the device keeps of its own; False: the fleet's parts alone.
        """
        blended, scores = method(NAME).blended, {}
        for name, device in self.everybody.items():
            context = self.site.context(device, self.task.rounds.count + 1)
            route = self.site.routed(device, context, self.state)
            scores[name] = self.judged(name, blended(self.task, route, device.private) if own else route)
        return scores


def domain_of(blob: str) -> str:
    """The domain whose experts a blob ``domain/<modality>.<domain>`` has."""
    return blob.rpartition(".")[2]


def after(route: Blobs, result: LocalResult) -> Blobs:
    """A device's whole model after its training: deltas applied, private parts replaced."""
    base = flatten(route)
    moved = apply(
        base,
        {
            name: delta
            for name, delta in result.tensors.items()
            if name in base and blob_of(name) in route and not name.startswith("features/")
        },
    )
    own = {name: tensor for name, tensor in result.private.items() if name in moved}
    return unflatten(moved | own)


def predicted(model: torch.nn.Module, windows: WindowSet, task: Task) -> dict[str, FloatArray]:
    """Predictions of an inference module by target: its first output for each target."""
    names: tuple[str, ...] = model.modalities  # type: ignore[assignment]  # of every routed module
    targets: tuple[Target, ...] = model.targets  # type: ignore[assignment]  # as above
    columns = [task.modality_names.index(name) for name in names]
    present_BM = torch.from_numpy(windows.present_BM[:, columns].astype(np.float32))
    with torch.no_grad():
        made = model.eval()(present_BM, *(torch.from_numpy(windows.x[name]) for name in names))
    by_output = dict(zip(outputs(targets), made, strict=True))
    return {target.name: by_output[output_names(target)[0]].numpy() for target in targets}


@study.timed_run
def run(fleet: TargetFleet, setting: DisentAflSetting, seed: int, tell: Say) -> DisentAflOutcome:
    """DisentAFL on a fleet; see :data:`lichen_lab.benchmarks.study.run_spec.Run`."""
    federation = TargetFederation(fleet, setting, seed)
    by_round = study.play_rounds(setting.rounds, tell, federation.play)
    if federation.refused:
        tell(f"{federation.refused} updates were refused")
    down: dict[str, list[int]] = {}
    for record in federation.records:
        for name, size in record.bytes_down.items():
            down.setdefault(name, []).append(size)
    return DisentAflOutcome(
        federation.personal,
        federation.aggregate(),
        by_round,
        {name: float(np.mean(device.sent)) for name, device in federation.everybody.items()},
        {name: float(np.mean(down[name])) for name in federation.everybody},
        newcomer=federation.aggregate(own=False),
        domains={name: dict(sorted(rounds.items())) for name, rounds in federation.domains.items()},
    )
