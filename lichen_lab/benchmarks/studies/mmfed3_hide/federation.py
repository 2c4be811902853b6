"""Makes a run in one process with the product's client, encoding, checks and fold. Imports torch.

Runs of one seed that differ only in their method share a warm start, which is made once.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    METHOD,
    HeldOutFacts,
    KnowledgeGraphFleet,
    Look,
    MmFed3Outcome,
    MmFed3Setting,
)
from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of, test_figures, valid_mrr
from lichen_lab.benchmarks.study.federation import Federation, StudyDevice, bytes_per_update, timed_run
from lichen_lab.simulation.training.downlink.downloads import Downloads
from models.contract import Profile
from models.knowledge_graph.data.keyed import KeyedGraph
from models.methods.mmfed3_hide import config_of
from models.methods.mmfed3_hide.device_state import STRUCTURE
from models.methods.mmfed3_hide.training_config import views_of
from models.registry import method
from protocol.tasks.task import Task

_FLOAT_BYTES: Final = 4
_OWN_MOMENTS: Final = "table/own/"
_SHORT_S: Final = 1e-9
_STARTS: dict[tuple[str, str, int], list["GatewayGroup"]] = {}
"""The most recent warm starts of this process."""
_MOST_STARTS: Final = 2


class GatewayGroup(Federation):
    """Gateways that share a global state."""

    def __init__(
        self, task: Task, devices: Sequence[StudyDevice], before: "GatewayGroup | None" = None
    ) -> None:
        self.gateways = devices
        self.downloads = Downloads(codecs=method(task.method).codecs)
        super().__init__(task, devices, down=self.downloads, state=dict(before.state) if before else None)
        if before is not None:
            self.records, self.spent_s = list(before.records), before.spent_s
            self.engine.reference = before.engine.reference
            self.downloads.kept |= {name: dict(kept) for name, kept in before.downloads.kept.items()}

    def going_on(self, task: Task, fleet: KnowledgeGraphFleet) -> "GatewayGroup":
        """A copy after the same round, with other options and features."""
        devices = [device_of(task, one.name, one.number, fleet) for one in self.gateways]
        for new, one in zip(devices, self.gateways, strict=True):
            new.private, new.carry = dict(one.private), dict(one.carry)
        return GatewayGroup(task, devices, self)


def forget_own_rows(devices: Sequence[StudyDevice]) -> None:
    """Drop the devices' own embeddings and their moments: the next round begins them as the fleet's."""
    for device in devices:
        device.private = {
            name: value
            for name, value in device.private.items()
            if name != STRUCTURE and not name.startswith(_OWN_MOMENTS)
        }


def device_of(task: Task, name: str, number: int, fleet: KnowledgeGraphFleet) -> StudyDevice:
    """A device with the modalities for which its graph has features."""
    graph = fleet.devices[name]
    known = tuple(each for m, each in enumerate(task.modality_names) if graph.present_EM[:, m].any())
    return StudyDevice.of(name, number, Profile(known, ()), graph)


@timed_run
def run(fleet: KnowledgeGraphFleet, setting: MmFed3Setting, seed: int, tell: Say) -> MmFed3Outcome:
    """See :data:`lichen_lab.benchmarks.study.run_spec.Run`.

    Raises:
        Misconfigured: there is no such option, or a device never learned anything.
    """
    task = task_of(fleet, setting, seed)
    groups = _warmed(fleet, setting, seed, task)
    looks: list[Look] = []
    speeds: list[float] = []
    for round_ in range(setting.warmup + 1, setting.rounds + 1):
        for group in groups:
            if fleet.replaced:
                forget_own_rows(group.gateways)
            group.round(round_)
        speeds.append(_speed(groups, setting))
        spent_s = sum(group.spent_s for group in groups)
        over = setting.cpu_s is not None and spent_s >= setting.cpu_s
        if over or round_ == setting.rounds or (setting.rounds - round_) % setting.look_every == 0:
            looks.append(_look(task, fleet.judges, groups, round_))
            tell(f"round {round_} of {setting.rounds}: MRR {looks[-1].valid:.4f}")
        if over:
            break
    up, down = bytes_per_update([record for group in groups for record in group.records])
    whole = fmean(whole_bytes(graph, setting.dim) for graph in fleet.devices.values())
    return MmFed3Outcome(looks, up, down, whole, fmean(speeds), sum(group.refused for group in groups))


RUNS: Final = {METHOD: run}
"""Method -> what makes its runs."""


def _warmed(fleet: KnowledgeGraphFleet, setting: MmFed3Setting, seed: int, task: Task) -> list[GatewayGroup]:
    """The groups of gateways after the warm start."""
    if not setting.warmup:
        return _fresh(fleet, task)
    start = setting.start()
    if views_of(config_of(task), len(fleet.features)) > 1:
        # relations with several views differ from the first round on
        start = replace(start, options=setting.options)
    key = fleet.deal, repr(start), seed
    if key not in _STARTS:
        while len(_STARTS) >= _MOST_STARTS:  # runs come seed by seed
            del _STARTS[next(iter(_STARTS))]
        groups = _fresh(_bare(fleet), task_of(fleet, start, seed))
        for group in groups:
            for round_ in range(1, setting.warmup + 1):
                group.round(round_)
        _STARTS[key] = groups
    return [group.going_on(task, fleet) for group in _STARTS[key]]


def _bare(fleet: KnowledgeGraphFleet) -> KnowledgeGraphFleet:
    """The same facts without features, which a warm start does not use."""
    devices = {
        name: replace(graph, present_EM=np.zeros_like(graph.present_EM))
        for name, graph in fleet.devices.items()
    }
    return replace(fleet, devices=devices)


def _fresh(fleet: KnowledgeGraphFleet, task: Task) -> list[GatewayGroup]:
    everybody = [device_of(task, name, number, fleet) for number, name in enumerate(fleet.devices)]
    return [GatewayGroup(task, own) for own in ([[one] for one in everybody] if fleet.apart else [everybody])]


def _look(task: Task, judges: Sequence[HeldOutFacts], groups: Sequence[GatewayGroup], round_: int) -> Look:
    private = {device.name: device.private for group in groups for device in group.gateways}
    spent_s = sum(group.spent_s for group in groups)
    return Look(round_, spent_s, valid_mrr(task, judges, private), test_figures(task, judges, private))


def _speed(groups: Sequence[GatewayGroup], setting: MmFed3Setting) -> float:
    """Triples a second of a round's training, over all devices."""
    devices = [device for group in groups for device in group.gateways]
    trained = setting.epochs * sum(len(device.held(0)) for device in devices)
    return trained / max(sum(device.train_s for device in devices), _SHORT_S)


def whole_bytes(graph: KeyedGraph, dim: int) -> int:
    """Bytes of a device's rows and of its modalities' projections in float32."""
    widths = [x_EF.shape[1] for m, x_EF in enumerate(graph.features.values()) if graph.present_EM[:, m].any()]
    rows: int = len(graph.entity_keys_E16) + sum(widths)
    return _FLOAT_BYTES * dim * rows
