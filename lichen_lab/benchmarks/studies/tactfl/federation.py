"""TACTFL in the study: the product's client, codec, checks, weights, fold and training; no processes."""

import time
from collections.abc import Sequence
from statistics import fmean

import torch

from lichen_lab.benchmarks.studies.tactfl.settings import HERE, TRAINED, TUNED, Fleet, Outcome, Setting, Tell
from lichen_lab.benchmarks.studies.tactfl.shared import Coordinator, looks, task_of
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.device import Site, VirtualDevice
from lichen_lab.simulation.training.engine import Engine, RoundRecord
from lichen_lab.simulation.training.guided import Guide
from models.aggregation.server_optimizer import model_of
from models.guided import Weighing
from models.registry import method


def run(fleet: Fleet, setting: Setting, seed: int, tell: Tell) -> Outcome:
    """TACTFL on a fleet; see :data:`lichen_lab.benchmarks.studies.tactfl.settings.Run`.

    The fine-tuned end goes on from the last version.
    """
    began = time.monotonic()
    torch.set_num_threads(1)
    task = task_of(fleet, setting, seed, setting.options)
    spec = method(task.method)
    spec.configure(task)
    coordinator = Coordinator.of(fleet, task, setting)
    engine = Engine(task, spec.server(), {}, None, guide=Guide.of(task, fleet.labelled, seed))
    site = Site(task, seed)
    devices = [
        VirtualDevice(member.name, Fixed(member.windows), number)
        for number, member in enumerate(fleet.members)
    ]
    state = coordinator.client.initial(task, seed)
    records: list[RoundRecord] = []
    by_round: list[tuple[int, float]] = []
    scores = {}
    for round_ in range(1, setting.rounds + 1):
        model = model_of(state)
        record, state = engine.close((site.deliver(d, model, round_) for d in devices), state, round_)
        records.append(record)
        for warning in record.weighing.warnings if record.weighing else ():
            tell(f"round {round_}: {warning}")
        if looks(round_, setting.rounds):
            scores[TRAINED] = coordinator.judged(state)
            by_round.append((round_, scores[TRAINED][HERE]["f1"]))
        tell(f"round {round_} of {setting.rounds}")
    if setting.tune_epochs:
        tuned = coordinator.whole(setting.rounds, model_of(state), setting.tune_epochs)
        scores[TUNED] = coordinator.judged(tuned)
    return Outcome(
        scores,
        by_round,
        shares=shares([record.weighing for record in records if record.weighing]),
        last_shares=shares([record.weighing for record in records[-1:] if record.weighing]),
        bytes_up=_bytes(records),
        refused=sum(len(record.refused) for record in records),
        seconds=time.monotonic() - began,
    )


def shares(weighings: Sequence[Weighing]) -> dict[str, float]:
    """Device -> its mean weight over rounds and parts, in shares of an equal one (1: as much as anyone)."""
    seen: dict[str, list[float]] = {}
    for weighing in weighings:
        for weights in weighing.weights.values():
            for device, weight in weights.items():
                seen.setdefault(device, []).append(weight * len(weights))
    return {device: fmean(values) for device, values in seen.items()}


def _bytes(records: Sequence[RoundRecord]) -> float:
    """Of a device and round, mean over updates that were folded."""
    updates = sum(len(record.accepted) for record in records)
    return sum(sum(record.bytes_up.values()) for record in records) / updates if updates else 0.0
