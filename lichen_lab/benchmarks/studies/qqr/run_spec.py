"""Makes a run: trains a seeded fleet with the product's code and evaluates it. Imports torch.

Windows and task are those of ``data.dataset_tasks``, which ``lichen simulate --dataset`` also uses. A run
that tunes (``QqrRun.tuning``) never sees the test people: some of the training people train nothing, and it
is evaluated on them.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import torch

from lichen_lab.benchmarks.studies.qqr import probes
from lichen_lab.benchmarks.studies.qqr.probes import ONLINE_LOSS, Trained
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, evaluated, study_of
from lichen_lab.benchmarks.study.federation import Federation
from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.streams import Evolving, rng_of
from lichen_lab.simulation.training.device import PROTOTYPE, TRAIN, VirtualDevice
from models.contract import WindowSet
from models.data.window_set import concat, select
from protocol.tasks.task import Task

_DATA_SEED: Final = 0
"""Fixed seed of pairs and people; a run's seed decides partition, faults, model and batches."""


def task_of(one: QqrRun) -> Task:
    """The task of one run: the study's network, the setting's options.

    Raises:
        Misconfigured: there is no such data set.
    """
    setting = one.setting
    task = study_of(one.fleet).task(
        rounds=setting.rounds, seed=one.seed, config=setting.config, codec=setting.codec
    )
    if not setting.modalities:
        return task
    modalities = tuple(m for m in task.modalities if m.name in setting.modalities)
    encoders = {m.name: task.encoder(m.name) for m in modalities}
    network = task.network.model_copy(update={"encoders": encoders})
    return task.model_copy(update={"modalities": modalities, "network": network})


@cache
def _loaded(name: str, part: Part) -> DataSplit:
    return study_of(name).load(part, _DATA_SEED)


def split(one: QqrRun, part: Part) -> DataSplit:
    """A part of the data set with only the setting's modalities. Read once a process.

    If the run tunes, both parts are of the training people: some of them, drawn by its seed, stand for the
    test people, and the others train.

    Raises:
        Misconfigured: the data set is unknown, or not here.
    """
    whole = _tuned(one, part) if one.tuning else _loaded(one.fleet, part)
    if not one.setting.modalities:
        return whole
    return replace(whole, windows=_only(whole.windows, one.setting.modalities))


def _tuned(one: QqrRun, part: Part) -> DataSplit:
    whole = _loaded(one.fleet, "train")
    people = rng_of(_HELD_OUT, one.seed).permutation(np.unique(whole.person_B))
    held = people[: max(1, round(_TUNED_ON * len(people)))]
    return whole.select(np.isin(whole.person_B, held) == (part == "test"))


def _only(windows: WindowSet, names: tuple[str, ...]) -> WindowSet:
    """The columns of some modalities."""
    columns = [column for column, name in enumerate(windows.x) if name in names]
    return replace(
        windows,
        x={name: x_BCT for name, x_BCT in windows.x.items() if name in names},
        present_BM=windows.present_BM[:, columns],
        quality_BM=windows.quality_BM[:, columns],
    )


_TEST_ORDER = 301
_TEACHERS = 302
_HELD_OUT = 303
_TUNED_ON = 0.3
"""Share of the training people that a run that tunes is evaluated on."""
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
    task, rounds = task_of(one), one.setting.rounds
    test = judged_on(one)
    fleet = fleet_of(one)
    federation = Federation(task, fleet, graphs=_graphs(one, task))
    client = federation.site.client
    curve: dict[int, float] = {}
    online: dict[int, float] = {}
    bytes_at: dict[int, int] = {}
    bytes_up: Counter[str] = Counter()
    confusion_KK = np.zeros((len(task.labels),) * 2)
    for round_ in range(1, rounds + 1):
        if ONLINE_LOSS in one.probes:
            held = before_faults(fleet, round_)
            online[round_] = client.evaluate(task, held, federation.model).metrics["loss"]
        bytes_up.update(federation.round(round_).bytes_up)
        if evaluated(round_, rounds):
            evaluation = client.evaluate(task, test, federation.state)
            curve[round_], bytes_at[round_] = evaluation.metrics["accuracy"], bytes_up.total()
            confusion_KK = np.array(evaluation.confusion_KK, float)
    trained = Trained(one, task, client, federation.state, test, split(one, "test"), online)
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
    windows = split(one, "test").windows
    if not one.small:
        return windows
    drawn = rng_of(_TEST_ORDER, one.seed).permutation(len(windows))[:_SMALL_TEST]
    return select(windows, np.sort(drawn))


def fleet_of(one: QqrRun) -> list[VirtualDevice]:
    """The devices that train, then those that send only prototypes."""
    whole, flow = split(one, "train"), one.conditions
    trainers = flow.fleet(_without(whole, flow.unseen_class).windows, one.seed)
    fleet = [
        VirtualDevice(name, stream, number, TRAIN) for number, (name, stream) in enumerate(trainers.items())
    ]
    if flow.prototype_devices:
        even = replace(flow, devices=flow.prototype_devices, alpha=_EVEN)
        teachers = even.fleet(whole.windows, one.seed + _TEACHERS)
        fleet += [
            VirtualDevice(f"p{place}", stream, len(trainers) + place, role=PROTOTYPE)
            for place, stream in enumerate(teachers.values())
        ]
    return fleet


def before_faults(fleet: Sequence[VirtualDevice], round_: int) -> WindowSet:
    """All windows that the devices hold at a round, as they were before a modality was lost or noisy."""
    streams = [device.stream for device in fleet if isinstance(device.stream, Evolving)]
    return concat([select(stream.pool, stream.held(round_)) for stream in streams])


def _without(split: DataSplit, unseen: int | None) -> DataSplit:
    return split if unseen is None else split.select(split.windows.y_B != unseen)
