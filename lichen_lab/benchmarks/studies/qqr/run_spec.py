"""One run: a seeded fleet, trained round by round on the code of the field, and judged. Imports torch."""

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from lichen_lab.benchmarks.studies.qqr import probes, studies
from lichen_lab.benchmarks.studies.qqr.settings import Flow, Outcome, Setting, evaluated
from lichen_lab.benchmarks.studies.qqr.trained import Trained
from lichen_lab.simulation.data.access.split import Split
from lichen_lab.simulation.data.online_fleet import online_fleet
from lichen_lab.simulation.data.streams import rng_of
from lichen_lab.simulation.training.device import PROTOTYPE, TRAIN, Site, VirtualDevice
from lichen_lab.simulation.training.engine import Engine
from models import registry
from models.contract import WindowSet
from models.data.window_set import select
from protocol.tasks.task import Task

_TEST_ORDER = 301
_TEACHERS = 302
_EVEN = 10.0
"""alpha of prototype devices' pools: each holds some windows of every class."""


def run(setting: Setting) -> Outcome:
    """Train and judge.

    Raises:
        Misconfigured: the data set is not here, or an option does not fit.
    """
    torch.set_num_threads(1)
    started = time.process_time()
    task = studies.task_of(setting)
    test = judged_on(setting)
    spec = registry.method(task.method)
    spec.configure(task)
    client = spec.client()
    site = Site(task, setting.seed, _graphs(setting, task))
    engine = Engine(task, spec.server(), {}, None)
    fleet, state = fleet_of(setting), client.initial(task, setting.seed)
    curve: dict[int, float] = {}
    bytes_at: dict[int, int] = {}
    bytes_up: dict[str, int] = {}
    refused, confusion_KK = 0, np.zeros((len(task.labels),) * 2)
    for round_ in range(1, setting.rounds + 1):
        base = state
        deliveries = (site.deliver(device, base, round_) for device in fleet)
        record, state = engine.close(deliveries, base, round_)
        refused += len(record.refused)
        for part, count in record.bytes_up.items():
            bytes_up[part] = bytes_up.get(part, 0) + count
        if evaluated(round_, setting.rounds):
            found = client.evaluate(task, test, state)
            curve[round_], bytes_at[round_] = found.metrics["accuracy"], sum(bytes_up.values())
            confusion_KK = np.array(found.confusion_KK, float)
    trained = Trained(setting, task, client, state, test, studies.split(setting, "test"))
    return Outcome(
        curve=curve,
        bytes_at=bytes_at,
        bytes_up=bytes_up,
        recall_K=(confusion_KK.diagonal() / np.maximum(confusion_KK.sum(axis=1), 1)).tolist(),
        probes={name: probes.PROBES[name](trained) for name in setting.probes},
        refused=refused,
        seconds=time.process_time() - started,
    )


def _graphs(setting: Setting, task: Task) -> dict[str, bytes]:
    """The encoders as ONNX graphs, where some device has no torch."""
    if not setting.flow.prototype_devices:
        return {}
    return _exported(task.model_copy(update={"config": {}, "seed": 0}).model_dump_json())


@cache
def _exported(task: str) -> dict[str, bytes]:
    """Graphs do not depend on the method's options or the seed; making them takes seconds."""
    from export.encoder_models import feature_graphs  # noqa: PLC0415 - onnx, only where it is needed

    return feature_graphs(Task.model_validate_json(task))


def judged_on(setting: Setting) -> WindowSet:
    """The test windows, or as many of them as the setting says, drawn evenly."""
    windows = studies.split(setting, "test").windows
    if setting.flow.test is None:
        return windows
    drawn = rng_of(_TEST_ORDER, setting.seed).permutation(len(windows))[: setting.flow.test]
    return select(windows, np.sort(drawn))


def fleet_of(setting: Setting) -> list[VirtualDevice]:
    """The devices that train, then those that send prototypes alone."""
    whole, flow = studies.split(setting, "train"), setting.flow
    trainers = online_fleet(_without(whole, flow.unseen_class), seed=setting.seed, **_numbers(flow))
    fleet = [
        VirtualDevice(name, stream, number, TRAIN) for number, (name, stream) in enumerate(trainers.items())
    ]
    if flow.prototype_devices:
        numbers = {**_numbers(flow), "devices": flow.prototype_devices, "alpha": _EVEN}
        teachers = online_fleet(whole, seed=setting.seed + _TEACHERS, **numbers)
        fleet += [
            VirtualDevice(f"p{place}", stream, len(trainers) + place, role=PROTOTYPE)
            for place, stream in enumerate(teachers.values())
        ]
    return fleet


def _numbers(flow: Flow) -> Mapping[str, Any]:
    """The flow as the arguments of :func:`lichen_lab.simulation.data.online_fleet.online_fleet`."""
    names = ("devices", "pool", "alpha", "size", "step", "missing_share", "affected_rounds")
    return {name: getattr(flow, name) for name in (*names, "noisy_rounds", "snr_db")}


def _without(split: Split, unseen: int | None) -> Split:
    return split if unseen is None else split.select(split.windows.y_B != unseen)
