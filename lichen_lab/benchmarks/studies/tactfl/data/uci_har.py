"""UCI-HAR without labels on the devices: accelerometer (gravity removed) and gyroscope, six activities.

The coordinator holds a random tenth of the official training people's windows, with labels; the devices
divide the others by Dirichlet. Evaluated on the official test people, whose windows have both modalities, and
on the same windows with one of them. The paper names neither the number of clients nor alpha:
:class:`lichen_lab.benchmarks.studies.tactfl.settings.DealConditions` has ours.
"""

from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.tactfl.data import dealing
from lichen_lab.benchmarks.studies.tactfl.settings import (
    DealConditions,
    UnlabelledFleet,
)
from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.sets import uci_har
from models.contract import Context
from models.data.window_set import select
from models.tensors import read_arrays
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

NAME: Final = "uci-har"
SCALES: Final = {"accelerometer": 0.15, "gyroscope": 0.35}
"""Standard deviations of the signals, in g and rad/s."""
_TUNED_ON: Final = 6
_PEOPLE: Final = 5
_HOP: Final = uci_har.SAMPLES // 2


def build(
    seed: int, conditions: DealConditions, *, tuning: bool = False, tests: int | None = None
) -> UnlabelledFleet:
    """Build the fleet.

    Args:
        seed: of the labelled windows, the deal, and missing modalities.
        conditions: number of devices, alpha, missing modalities and faults.
        tuning: evaluate on some training people, who then do not train, instead of the test people.
        tests: number of test windows; None: all.

    Raises:
        Misconfigured: the data set is not here, or a condition does not fit it.
    """
    if conditions.shift:
        raise Misconfigured(f"{NAME}: devices cannot differ by {', '.join(conditions.shift)}; hapt's can")
    learned = dealing.fleet_task(NAME, SCALES, conditions.context_s)
    train, test = _people(seed) if tuning else (_split("train"), _split("test"))
    windows = train.windows
    if conditions.context_s is not None:
        windows = replace(windows, context=_contexts(learned, train))
    places, left = dealing.labelled_places(len(windows), conditions.labelled, seed)
    labelled = replace(select(windows, places), context=None)
    shares = dealing.dirichlet_shares(windows.y_B[left], conditions.devices, conditions.alpha, seed)
    held = {
        f"d{at:02d}": select(windows, left[dealing.some(share, conditions.windows)])
        for at, share in enumerate(shares)
    }
    judged = select(test.windows, dealing.some(np.arange(len(test)), tests))
    return UnlabelledFleet(
        NAME, learned, dealing.members(held, conditions, seed), labelled, dealing.tested(judged)
    )


@cache
def _split(part: Part) -> DataSplit:
    return uci_har.load(part, "body")


def _people(seed: int) -> tuple[DataSplit, DataSplit]:
    """The training people without the held-out ones, and the held-out ones."""
    whole = _split("train")
    people = dealing.rng_of(seed, _PEOPLE).permutation(np.unique(whole.person_B))
    held_B = np.isin(whole.person_B, people[:_TUNED_ON])
    return whole.select(~held_B), whole.select(held_B)


@cache
def _before() -> NDArray[np.int64]:
    """For each official training window, the number of windows before it in its stream."""
    arrays: dict[str, NDArray[Any]] = read_arrays(uci_har.packed("train"), "UCI-HAR")
    if "continues_previous" not in arrays:
        raise Misconfigured(
            f"{uci_har.packed('train')}: key 'continues_previous' is missing, without which no stream can "
            "be joined; fetch the data set again"
        )
    runs_B = np.zeros(len(arrays["y"]), np.int64)
    for at in np.flatnonzero(arrays["continues_previous"]).tolist():
        runs_B[at] = runs_B[at - 1] + 1
    return runs_B


def _contexts(learned: Task, train: DataSplit) -> Context:
    """The context of each window: windows of one stream overlap by half, in the official order."""
    whole, runs_B = _split("train").windows, _before()
    at_B = np.flatnonzero(np.isin(_split("train").person_B, np.unique(train.person_B)))
    x, points = {}, []
    for name, x_BCT in whole.x.items():
        length = learned.context_samples(name)
        hops = -(-(length - uci_har.SAMPLES) // _HOP)
        joined_BCL = np.zeros((len(at_B), x_BCT.shape[1], hops * _HOP + uci_har.SAMPLES), np.float32)
        joined_BCL[:, :, hops * _HOP :] = x_BCT[at_B]
        for back in range(1, hops + 1):
            there_B = runs_B[at_B] >= back
            start = (hops - back) * _HOP
            joined_BCL[there_B, :, start : start + _HOP] = x_BCT[at_B[there_B] - back, :, :_HOP]
        x[name] = np.ascontiguousarray(joined_BCL[:, :, -length:])
        points.append(np.minimum(length, uci_har.SAMPLES + _HOP * np.minimum(runs_B[at_B], hops)))
    return Context(x, np.stack(points, axis=1))
