"""Makes a run: trains a seeded fleet with the product's code and evaluates it. Imports torch."""

import time
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from lichen_lab.benchmarks.studies.qqr import probes, studies
from lichen_lab.benchmarks.studies.qqr.probes import Trained
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, StreamConditions, evaluated
from lichen_lab.benchmarks.study.federation import Federation
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.online_fleet import online_fleet
from lichen_lab.simulation.data.streams import rng_of
from lichen_lab.simulation.training.device import PROTOTYPE, TRAIN, VirtualDevice
from models.contract import WindowSet
from models.data.window_set import select
from protocol.tasks.task import Task

_TEST_ORDER = 301
_TEACHERS = 302
_SMALL_TEST = 128
_EVEN = 10.0
"""alpha of prototype devices' pools: each has some windows of every class."""


def run(one: QqrRun) -> QqrOutcome:
    """Train and evaluate.

    Raises:
        Misconfigured: the data set is not here, or an option does not fit.
    """
    torch.set_num_threads(1)
    started = time.process_time()
    task, rounds = studies.task_of(one), one.setting.rounds
    test = judged_on(one)
    federation = Federation(task, fleet_of(one), graphs=_graphs(one, task))
    client = federation.site.client
    curve: dict[int, float] = {}
    bytes_at: dict[int, int] = {}
    bytes_up: Counter[str] = Counter()
    confusion_KK = np.zeros((len(task.labels),) * 2)
    for round_ in range(1, rounds + 1):
        bytes_up.update(federation.round(round_).bytes_up)
        if evaluated(round_, rounds):
            evaluation = client.evaluate(task, test, federation.state)
            curve[round_], bytes_at[round_] = evaluation.metrics["accuracy"], bytes_up.total()
            confusion_KK = np.array(evaluation.confusion_KK, float)
    trained = Trained(one, task, client, federation.state, test, studies.split(one, "test"))
    return QqrOutcome(
        curve=curve,
        bytes_at=bytes_at,
        bytes_up=dict(bytes_up),
        recall_K=(confusion_KK.diagonal() / np.maximum(confusion_KK.sum(axis=1), 1)).tolist(),
        probes={name: probes.PROBES[name](trained) for name in one.probes},
        refused=federation.refused,
        seconds=time.process_time() - started,
    )


def _graphs(one: QqrRun, task: Task) -> dict[str, bytes]:
    """The encoders as ONNX models, if some device has no torch."""
    if not one.conditions.prototype_devices:
        return {}
    return _exported(task.model_copy(update={"config": {}, "seed": 0}).model_dump_json())


@cache
def _exported(task: str) -> dict[str, bytes]:
    """ONNX models depend on neither the method's options nor the seed; exporting them takes seconds."""
    from export.encoder_models import make_encoder_models  # noqa: PLC0415 - onnx, only where it is needed

    return make_encoder_models(Task.model_validate_json(task))


def judged_on(one: QqrRun) -> WindowSet:
    """The test windows; a random sample of them in a small run."""
    windows = studies.split(one, "test").windows
    if not one.small:
        return windows
    drawn = rng_of(_TEST_ORDER, one.seed).permutation(len(windows))[:_SMALL_TEST]
    return select(windows, np.sort(drawn))


def fleet_of(one: QqrRun) -> list[VirtualDevice]:
    """The devices that train, then those that send only prototypes."""
    whole, flow = studies.split(one, "train"), one.conditions
    trainers = online_fleet(_without(whole, flow.unseen_class), seed=one.seed, **_numbers(flow))
    fleet = [
        VirtualDevice(name, stream, number, TRAIN) for number, (name, stream) in enumerate(trainers.items())
    ]
    if flow.prototype_devices:
        numbers = {**_numbers(flow), "devices": flow.prototype_devices, "alpha": _EVEN}
        teachers = online_fleet(whole, seed=one.seed + _TEACHERS, **numbers)
        fleet += [
            VirtualDevice(f"p{place}", stream, len(trainers) + place, role=PROTOTYPE)
            for place, stream in enumerate(teachers.values())
        ]
    return fleet


def _numbers(flow: StreamConditions) -> Mapping[str, Any]:
    """The flow as the arguments of :func:`lichen_lab.simulation.data.online_fleet.online_fleet`."""
    names = ("devices", "pool", "alpha", "size", "step", "missing_share", "affected_rounds")
    return {name: getattr(flow, name) for name in (*names, "noisy_rounds", "snr_db")}


def _without(split: DataSplit, unseen: int | None) -> DataSplit:
    return split if unseen is None else split.select(split.windows.y_B != unseen)
