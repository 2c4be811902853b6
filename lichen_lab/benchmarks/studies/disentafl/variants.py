"""The methods, their tuned options, and the fleets' settings: the table to change.

``lichen bench disentafl --part tune`` chose the learning rates from one grid for all methods, ``--part
options`` the other options, on seeds that no table uses, evaluated on held-out training windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from lichen_lab.benchmarks.studies.disentafl.settings import (
    NETWORK,
    DisentAflOutcome,
    DisentAflRun,
    DisentAflSetting,
    fleet_mean,
)
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

METHOD: Final = "disentafl"
"""The product's method; all others are baselines."""
LOCAL: Final = "local"
FEDAVG: Final = "fedavg"
CROSS_FEDAVG: Final = "cross_fedavg"
ALIGN_FEDAVG: Final = "align_fedavg"
CROSS_PFL: Final = "cross_pfl"
FEDMSPLIT: Final = "fedmsplit"
TITLES: Final[Mapping[str, str]] = {
    LOCAL: "Local",
    FEDAVG: "FedAvg (per group)",
    CROSS_FEDAVG: "Cross-FedAvg",
    ALIGN_FEDAVG: "Align-FedAvg",
    CROSS_PFL: "Cross-PFL",
    FEDMSPLIT: "FedMSplit",
}
"""Of the baselines."""
AVG: Final = "DisentAFL-Avg"
KD: Final = "DisentAFL-KD"


EVERYBODY: Final = "all devices in every round"
PERSONAL: Final = Figure[DisentAflOutcome]("own models, mean over devices, %", attrgetter("mean"))
AGGREGATE: Final = Figure[DisentAflOutcome](
    "what the fleet gives, mean over devices, %",
    lambda outcome: None if outcome.aggregate is None else fleet_mean(outcome.aggregate),
)
NEWCOMER: Final = Figure[DisentAflOutcome](
    "what a newcomer gets, mean over devices, %",
    lambda outcome: None if outcome.newcomer is None else fleet_mean(outcome.newcomer),
)
Results = PartResults[DisentAflRun, DisentAflOutcome]
Line = StudyLine[DisentAflRun, DisentAflOutcome]
Part = partial(StudyPart[DisentAflRun, DisentAflOutcome], figures=(PERSONAL, AGGREGATE, NEWCOMER))
"""A part with the study's figures."""


def of_kind(kind: str) -> Callable[[DisentAflOutcome], float]:
    """The mean of the personal models over the devices of a kind."""

    def figure(outcome: DisentAflOutcome) -> float:
        return fleet_mean({name: s for name, s in outcome.personal.items() if outcome.kinds[name] == kind})

    return figure


VEHICLE: Final = "vehicle-xm"
UCI_HAR: Final = "uci-har-xm"
MERGE_FA: Final = "merge-fa"
FLEETS: Final = (VEHICLE, UCI_HAR, MERGE_FA)
"""On which everything was tuned."""
VEHICLE_RANDOM: Final = "vehicle-xm-random"
MERGE_AC: Final = "merge-ac"
MERGE_VM: Final = "merge-vm"
MERGE_MM: Final = "merge-mm"
RHO: Final[Mapping[float, str]] = {0.2: f"{MERGE_VM}, rho 0.2", 0.5: MERGE_VM, 0.8: f"{MERGE_VM}, rho 0.8"}
"""Share of MERGE-VM's devices with one sensor -> the fleet."""
TUNED_ON: Final[Mapping[str, str]] = {
    **{name: name for name in FLEETS},
    VEHICLE_RANDOM: VEHICLE,
    MERGE_AC: MERGE_FA,
    **dict.fromkeys(RHO.values(), VEHICLE),
    MERGE_MM: UCI_HAR,
}
"""Fleet -> the one whose learning rates and options all methods have on it."""
BASE: Final[Mapping[str, DisentAflSetting]] = {
    name: DisentAflSetting(rounds=40, batch=16, latent=64, options={"lr_decay": 0.95}) for name in FLEETS
}
"""The setting of all methods on a fleet. The decay improves all personal models: a last local round at the
full rate undoes part of the fleet's gain."""
_OURS: Final[Mapping[str, Any]] = {"align": 0.01, "orthogonal": 0.01, "validation": 0.0}
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    AVG: {**_OURS, "last_layer": "private"},
    KD: {**_OURS, "aggregate": "kd"},
}
"""Method's title -> options; a baseline that is missing here uses its defaults."""
ON_FLEET: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    VEHICLE: {
        AVG: {
            "domains": 1,
            "align": 0.1,
            "orthogonal": 0.1,
            "last_layer": "interpolated",
        },
        KD: {"domains": 1},
    },
    UCI_HAR: {AVG: {"domains": 1, "own_share": 0.4}, KD: {"domains": 1}},
    MERGE_FA: {},
    MERGE_MM: {AVG: {"domains": 3, "own_share": 0.0}, KD: {"domains": 3}},
}
"""Likewise for one fleet, on top of those of the fleet that it is :data:`TUNED_ON`; the paper's first two
fleets have a single domain."""
METHODS: Final[Mapping[str, str]] = {
    **{title: name for name, title in TITLES.items()},
    AVG: METHOD,
    KD: METHOD,
}
"""Title -> method, in the tables' order."""

GRID: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Learning rates of the first round, tried with every method on every fleet."""
TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    TITLES[CROSS_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    TITLES[ALIGN_FEDAVG]: ({"distil": 0.8}, {"distil": 0.0}),
    TITLES[CROSS_PFL]: ({"pull": 0.25}, {"pull": 0.75}, {"distil": 0.8}),
    TITLES[FEDMSPLIT]: ({"temperature": 0.1}, {"temperature": 2.0}, {"distil": 0.8}),
    AVG: ({"align": 1.2, "orthogonal": 4.0}, {"align": 0.0, "orthogonal": 0.0}, {"last_layer": "shared"}),
    KD: ({"distil": 0.1}, {"distil": 4.0}, {"align": 0.0, "orthogonal": 0.0}),
}
"""Method's title -> other options that are tried at its learning rate."""
TUNING_SEEDS: Final = (100, 101)
"""No table uses these."""
SEEDS: Final = 5
_RATES: Final[Mapping[str, Sequence[float]]] = {
    VEHICLE: (0.002, 0.004, 0.004, 0.008, 0.008, 0.008, 0.004, 0.002),
    UCI_HAR: (0.004, 0.004, 0.008, 0.008, 0.008, 0.008, 0.008, 0.004),
    MERGE_FA: (0.004, 0.008, 0.016, 0.016, 0.016, 0.016, 0.008, 0.004),
}
"""In the order of :data:`METHODS`."""
BEST_LR: Final[Mapping[str, Mapping[str, float]]] = {
    fleet: dict(zip(METHODS, rates, strict=True)) for fleet, rates in _RATES.items()
}
"""Fleet -> method's title -> best learning rate of the part ``tune``."""


def options_of(fleet: str, title: str) -> dict[str, Any]:
    """The options that a method has on a fleet, apart from those of all methods."""
    named = (TUNED_ON[fleet], fleet)
    on_fleet = [ON_FLEET[name].get(title, {}) for name in named if name in ON_FLEET]
    return {name: value for some in (OPTIONS.get(title, {}), *on_fleet) for name, value in some.items()}


def spec(
    fleet: str, title: str, *, lr: float | None = None, tuning: bool = False, **options: Any
) -> DisentAflRun:
    """A method's run on a fleet with its tuned options, apart from those (and the sizes) given here."""
    like = TUNED_ON[fleet]
    own = options_of(fleet, title)
    sizes = {name: options.pop(name) for name in NETWORK if name in options}
    whole = {**BASE[like].options, **own, **options}
    setting = replace(BASE[like], lr=BEST_LR[like][title] if lr is None else lr, options=whole, **sizes)
    return DisentAflRun(fleet, METHODS[title], setting, tuning=tuning)


def line(fleet: str, title: str, under: str = EVERYBODY, *, named: str | None = None, **options: Any) -> Line:
    """A line of a table: a method, ``named`` otherwise, and its conditions; the rest as of :func:`spec`."""
    return Line(named or title, spec(fleet, title, **options), under)


def table() -> tuple[Line, ...]:
    """Every method on every fleet."""
    return tuple(line(fleet, title) for fleet in FLEETS for title in METHODS)
