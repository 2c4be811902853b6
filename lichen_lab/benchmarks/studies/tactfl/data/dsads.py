"""DSADS without labels on the devices: a device a person, two of three kinds of sensors on five body units.

As the paper has it for mHealth: one person is held out for testing, the coordinator holds the windows of
another with labels, and the rest train; each of these pairs of sensors is a fleet of its own. The seed draws
who is who.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.tactfl.data import dealing
from lichen_lab.benchmarks.studies.tactfl.settings import DealConditions, UnlabelledFleet
from lichen_lab.simulation.data.sets import dsads
from models.contract import WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

SCALES: Final = {"accelerometer": 5.0, "gyroscope": 0.8, "magnetometer": 0.35}
"""About the standard deviations of the signals, in m/s^2, rad/s and shares of the earth's field."""
PAIRS: Final = {
    f"dsads, {one} and {other}": (one, other)
    for one, other in (
        ("accelerometer", "gyroscope"),
        ("accelerometer", "magnetometer"),
        ("gyroscope", "magnetometer"),
    )
}
"""Fleet -> its modalities."""
_PEOPLE: Final = 5


def build(
    name: str,
    seed: int,
    conditions: DealConditions,
    *,
    tuning: bool = False,
    tests: int | None = None,
) -> UnlabelledFleet:
    """The fleet of that pair; see :func:`lichen_lab.benchmarks.studies.tactfl.data.uci_har.build`.

    ``alpha`` means nothing here, because a device's windows are one person's; ``labelled`` is the share of
    the labelled person's windows that the coordinator has. With ``tuning``, the test person of the seed takes
    no part, and a further person is held out.

    Raises:
        Misconfigured: the data set is not here, or a condition does not fit it.
    """
    if conditions.shift or conditions.context_s is not None:
        raise Misconfigured(f"{name}: has neither contexts nor devices that are worn in another way")
    pair = PAIRS[name]
    test, ours, *others = dealing.rng_of(seed, _PEOPLE).permutation(dsads.PEOPLE).tolist()
    if tuning:
        test, *others = others
    labelled = _windows(ours, pair)
    if conditions.labelled < 1:
        places, _ = dealing.labelled_places(len(labelled), conditions.labelled, seed)
        labelled = select(labelled, places)
    held = {}
    for person in others[: conditions.devices]:
        own = _windows(person, pair)
        held[f"p{person}"] = select(own, dealing.some(np.arange(len(own)), conditions.windows))
    judged = _windows(test, pair)
    judged = select(judged, dealing.some(np.arange(len(judged)), tests))
    return UnlabelledFleet(
        name, _task(pair), dealing.members(held, conditions, seed), labelled, dealing.tested(judged)
    )


@cache
def _person(person: int) -> WindowSet:
    return dsads.load(person).windows


def _windows(person: int, pair: tuple[str, str]) -> WindowSet:
    whole = _person(person)
    at = [list(whole.x).index(name) for name in pair]
    return replace(
        whole,
        x={name: whole.x[name] for name in pair},
        present_BM=whole.present_BM[:, at],
        quality_BM=whole.quality_BM[:, at],
    )


def _task(pair: tuple[str, str]) -> Task:
    """The task; a run sets its network and options."""
    return Task(
        name="dsads",
        method="tactfl",
        labels=dsads.LABELS,
        modalities=tuple(
            m.model_copy(update={"scale": SCALES[m.name]}) for m in dsads.MODALITIES if m.name in pair
        ),
        window=Window(length_s=dsads.WINDOW_S, stride_s=dsads.WINDOW_S),
        rounds=Rounds(min_windows=1),
    )


BUILDERS: Final = {name: partial(build, name) for name in PAIRS}
