"""Windows and task of a run, from ``data.dataset_tasks``, which ``lichen simulate --dataset`` also uses."""

from dataclasses import replace
from functools import cache
from typing import Final

from lichen_lab.benchmarks.studies.qqr.settings import QqrRun
from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.dataset_tasks import study
from models.contract import WindowSet
from protocol.tasks.task import Task

_DATA_SEED: Final = 0
"""Fixed seed of pairs and people; a run's seed decides partition, faults, model and batches."""


def task_of(one: QqrRun) -> Task:
    """The task of one run: the study's network, the setting's options.

    Raises:
        Misconfigured: there is no such data set.
    """
    setting = one.setting
    task = study(one.fleet).task(
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
    return study(name).load(part, _DATA_SEED)


def split(one: QqrRun, part: Part) -> DataSplit:
    """A part of the data set with only the setting's modalities. Read once a process.

    Raises:
        Misconfigured: the data set is unknown, or not here.
    """
    whole = _loaded(one.fleet, part)
    if not one.setting.modalities:
        return whole
    return replace(whole, windows=_only(whole.windows, one.setting.modalities))


def _only(windows: WindowSet, names: tuple[str, ...]) -> WindowSet:
    """The columns of some modalities."""
    columns = [column for column, name in enumerate(windows.x) if name in names]
    return replace(
        windows,
        x={name: x_BCT for name, x_BCT in windows.x.items() if name in names},
        present_BM=windows.present_BM[:, columns],
        quality_BM=windows.quality_BM[:, columns],
    )
