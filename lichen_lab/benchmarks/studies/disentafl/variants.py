"""What is compared: methods, their options as tuned, and the fleets' settings. The one table to change.

How the options were chosen: ``lichen bench disentafl --part tune`` runs every method over the same grid of
learning rates, ``--part options`` with other options of its own, on seeds that no table uses, judged on a
part of the windows that train.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lichen_lab.benchmarks.studies.disentafl import names as n
from lichen_lab.benchmarks.studies.disentafl.part import EVERYBODY, Line
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflRun, DisentAflSetting

VEHICLE: Final = "vehicle-xm"
UCI_HAR: Final = "uci-har-xm"
MERGE_FA: Final = "merge-fa"
FLEETS: Final = (VEHICLE, UCI_HAR, MERGE_FA)
BASE: Final[Mapping[str, DisentAflSetting]] = {
    name: DisentAflSetting(rounds=40, batch=16, latent=64, options={"lr_decay": 0.95}) for name in FLEETS
}
"""What all methods are given on a fleet. The decay lifts own models of all of them: a last local round at the
full rate undoes some of what the fleet gave."""
_OURS: Final[Mapping[str, Any]] = {"align": 0.01, "orthogonal": 0.01, "validation": 0.0}
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    n.AVG: {**_OURS, "last_layer": "private"},
    n.KD: {**_OURS, "aggregate": "kd"},
}
"""Options of a method, by its title; those of a baseline that is not here are its defaults."""
ON_FLEET: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    VEHICLE: {
        n.AVG: {
            "domains": 1,
            "align": 0.1,
            "orthogonal": 0.1,
            "last_layer": "interpolated",
        },
        n.KD: {"domains": 1},
    },
    UCI_HAR: {n.AVG: {"domains": 1, "own_share": 0.4}, n.KD: {"domains": 1}},
    MERGE_FA: {},
}
"""Likewise, on one fleet alone: the paper's first two are of a single domain."""
METHODS: Final[Mapping[str, str]] = {
    **{title: name for name, title in n.TITLES.items()},
    n.AVG: n.OURS,
    n.KD: n.OURS,
}
"""Title -> method, in the tables' order."""

GRID: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Learning rates of the first round that every method is tried with on every fleet."""
TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    n.TITLES[n.CROSS_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    n.TITLES[n.ALIGN_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    n.TITLES[n.CROSS_PFL]: ({"pull": 0.25}, {"pull": 0.75}, {"distil": 0.8}),
    n.TITLES[n.FEDMSPLIT]: ({"temperature": 0.1}, {"temperature": 2.0}, {"distil": 0.8}),
    n.AVG: ({"align": 1.2, "orthogonal": 4.0}, {"align": 0.0, "orthogonal": 0.0}, {"last_layer": "shared"}),
    n.KD: ({"distil": 0.1}, {"distil": 4.0}, {"align": 0.0, "orthogonal": 0.0}),
}
"""Options of its own that a method is tried with beside those it has, at its learning rate."""
TUNING_SEEDS: Final = (100, 101)
"""No table uses these."""
SEEDS: Final = 5
_LR: Final = 0.004
BEST_LR: Final[Mapping[str, Mapping[str, float]]] = {
    VEHICLE: {
        n.TITLES[n.LOCAL]: 0.002,
        n.TITLES[n.FEDAVG]: 0.004,
        n.TITLES[n.CROSS_FEDAVG]: 0.004,
        n.TITLES[n.ALIGN_FEDAVG]: 0.008,
        n.TITLES[n.CROSS_PFL]: 0.008,
        n.TITLES[n.FEDMSPLIT]: 0.008,
        n.AVG: 0.004,
        n.KD: 0.002,
    },
    UCI_HAR: {
        n.TITLES[n.LOCAL]: 0.004,
        n.TITLES[n.FEDAVG]: 0.004,
        n.TITLES[n.CROSS_FEDAVG]: 0.008,
        n.TITLES[n.ALIGN_FEDAVG]: 0.008,
        n.TITLES[n.CROSS_PFL]: 0.008,
        n.TITLES[n.FEDMSPLIT]: 0.008,
        n.AVG: 0.008,
        n.KD: 0.004,
    },
    MERGE_FA: {
        n.TITLES[n.LOCAL]: 0.004,
        n.TITLES[n.FEDAVG]: 0.008,
        n.TITLES[n.CROSS_FEDAVG]: 0.016,
        n.TITLES[n.ALIGN_FEDAVG]: 0.016,
        n.TITLES[n.CROSS_PFL]: 0.016,
        n.TITLES[n.FEDMSPLIT]: 0.016,
        n.AVG: 0.008,
        n.KD: 0.004,
    },
}
"""Fleet -> title -> the best of the grid in the part ``tune``."""


def lr_of(fleet: str, title: str) -> float:
    """The tuned learning rate."""
    return BEST_LR[fleet].get(title, _LR)


def spec(
    fleet: str, title: str, *, lr: float | None = None, tuning: bool = False, **options: Any
) -> DisentAflRun:
    """A method's run on a fleet, as tuned but for what is named here."""
    own = {**OPTIONS.get(title, {}), **ON_FLEET[fleet].get(title, {})}
    whole = {**BASE[fleet].options, **own, **options}
    setting = replace(BASE[fleet], lr=lr_of(fleet, title) if lr is None else lr, options=whole)
    return DisentAflRun(fleet, METHODS[title], setting, tuning=tuning)


def line(fleet: str, title: str, under: str = EVERYBODY, *, named: str | None = None, **options: Any) -> Line:
    """A line of a table: a method, ``named`` otherwise, and its conditions; the rest as of :func:`spec`."""
    return Line(named or title, spec(fleet, title, **options), under)


def table() -> tuple[Line, ...]:
    """Every method on every fleet."""
    return tuple(line(fleet, title) for fleet in FLEETS for title in METHODS)
