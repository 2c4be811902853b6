"""The methods, their tuned options, and the fleets' settings: the table to change.

``lichen bench disentafl --part tune`` chose the learning rates from one grid for all methods, ``--part
options`` the other options, on seeds that no table uses, evaluated on held-out training windows.
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
"""The setting of all methods on a fleet. The decay improves all personal models: a last local round at the
full rate undoes part of the fleet's gain."""
_OURS: Final[Mapping[str, Any]] = {"align": 0.01, "orthogonal": 0.01, "validation": 0.0}
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    n.AVG: {**_OURS, "last_layer": "private"},
    n.KD: {**_OURS, "aggregate": "kd"},
}
"""Method's title -> options; a baseline that is missing here uses its defaults."""
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
"""Likewise for one fleet; the paper's first two fleets have a single domain."""
METHODS: Final[Mapping[str, str]] = {
    **{title: name for name, title in n.TITLES.items()},
    n.AVG: n.OURS,
    n.KD: n.OURS,
}
"""Title -> method, in the tables' order."""

GRID: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Learning rates of the first round, tried with every method on every fleet."""
TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    n.TITLES[n.CROSS_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    n.TITLES[n.ALIGN_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    n.TITLES[n.CROSS_PFL]: ({"pull": 0.25}, {"pull": 0.75}, {"distil": 0.8}),
    n.TITLES[n.FEDMSPLIT]: ({"temperature": 0.1}, {"temperature": 2.0}, {"distil": 0.8}),
    n.AVG: ({"align": 1.2, "orthogonal": 4.0}, {"align": 0.0, "orthogonal": 0.0}, {"last_layer": "shared"}),
    n.KD: ({"distil": 0.1}, {"distil": 4.0}, {"align": 0.0, "orthogonal": 0.0}),
}
"""Method's title -> other options that are tried at its learning rate."""
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
"""Fleet -> method's title -> best learning rate of the part ``tune``."""


def lr_of(fleet: str, title: str) -> float:
    """The tuned learning rate."""
    return BEST_LR[fleet].get(title, _LR)


def spec(
    fleet: str, title: str, *, lr: float | None = None, tuning: bool = False, **options: Any
) -> DisentAflRun:
    """A method's run on a fleet with its tuned options, apart from those given here."""
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
