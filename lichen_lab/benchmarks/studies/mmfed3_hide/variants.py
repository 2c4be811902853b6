"""The methods, their tuned options, and the conditions: the table to change.

``lichen bench mmfed3_hide --part tune`` chose the options among :data:`TRIED` on seeds that no table uses,
evaluated on validation facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY, WHOLE
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    STRUCTURE,
    GraphConditions,
    MmFed3Outcome,
    MmFed3Run,
    MmFed3Setting,
    Who,
)
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

FEDE: Final = "FedE"
S_IND: Final = "S-Ind"
MM_IND: Final = "MMInd"
MM_CEN: Final = "MMCen"
MMFEDE: Final = "MMFedE"
MMFEDEC: Final = "MMFedEC"
MMFEDPROX: Final = "MMFedProx"
MMFEDLU: Final = "MMFedLU"
MMFED3: Final = "MMFeD3"
FLEETS: Final = (MMFEDE, MMFEDEC, MMFEDPROX, MMFEDLU, MMFED3)
"""Ways to learn as a fleet that read features; :data:`FEDE` reads none, so no imputer changes it."""

NONE: Final = "none"
IMPUTERS: Final[Mapping[str, str]] = {
    NONE: "nothing",
    "ae": "AE",
    "cra": "CRA",
    "mmin": "MMIN",
    "hide": "HidE",
}
"""Replacement of missing features -> its title."""


def titled(fleet: str, imputer: str = NONE) -> str:
    """Title of a way to learn and an imputer, in the paper's form."""
    return fleet if imputer == NONE else f"{fleet}-{IMPUTERS[imputer]}"


OURS: Final = titled(MMFED3, "hide")
MMFEDE_HIDE: Final = titled(MMFEDE, "hide")
BOUNDS: Final = (S_IND, MM_IND, MM_CEN)
MATRIX: Final[Mapping[str, tuple[str, str]]] = {
    FEDE: (FEDE, NONE),
    **{titled(fleet, imputer): (fleet, imputer) for fleet, imputer in product(FLEETS, IMPUTERS)},
}
"""Title -> its row and column in the matrix: a way to learn and a replacement of missing features."""
PLACES: Final = {**MATRIX, **{title: (title, NONE) for title in BOUNDS}}
"""The same for all methods."""


MRR: Final = "MRR, %"
METRICS: Final = {MRR: "mrr", "Hits@1, %": "hits1", "Hits@3, %": "hits3", "Hits@10, %": "hits10"}
Results = PartResults[MmFed3Run, MmFed3Outcome]
Line = StudyLine[MmFed3Run, MmFed3Outcome]


def best(name: str, outcome: MmFed3Outcome) -> float:
    """A figure on test facts in the round with the best validation figure, in %."""
    return 100 * outcome.best.test[name]


Part = partial(
    StudyPart[MmFed3Run, MmFed3Outcome],
    figures=tuple(Figure(metric, partial(best, name)) for metric, name in METRICS.items()),
    worst=True,
)
"""A part with the study's figures."""
SEEDS: Final = 3
TUNING_SEEDS: Final = (100, 101, 102)
"""No table uses these."""
RATE: Final = 0.5
"""Default of r, as in the paper."""
BASE: Final[Mapping[str, MmFed3Setting]] = {
    BUSY: MmFed3Setting(rounds=12, warmup=4, epochs=3, dim=64, dense_lr=0.0002, look_every=1),
    WHOLE: MmFed3Setting(
        rounds=200, warmup=4, epochs=3, dim=128, lr=0.01, dense_lr=0.0002, look_every=2, cpu_s=1200.0
    ),
}
"""The setting of all methods on a graph."""
COMMON: Final[Mapping[str, Mapping[str, Any]]] = {BUSY: {"lr_decay": 0.9}, WHOLE: {"lr_decay": 0.95}}
"""Options of all methods on a graph. Without the decay, they overfit."""
FUSION: Final = "gated"
"""Default of Phi."""
FUSIONS: Final[Mapping[str, str]] = {
    "gated": "gated from zero",
    "gated_average": "gated, the paper's",
    "weighted": "weighted",
    "average": "average",
    "concat": "concatenation",
    "split": "split",
    "structure": "none (structure alone)",
}
"""Phi -> its words."""
SCORES: Final[Mapping[str, str]] = {"rotate": "RotatE", "transe": "TransE", "complex": "ComplEx"}


@dataclass(frozen=True)
class Recipe:
    """Definition of a method.

    Attributes:
        options: override the method's defaults.
        who: see :class:`lichen_lab.benchmarks.studies.mmfed3_hide.settings.GraphConditions`.
        rate: fixed rate of features, for methods that read none or all; None: the conditions' rate.
    """

    options: Mapping[str, Any]
    who: Who = "fleet"
    rate: float | None = None


RECIPES: Final[Mapping[str, Recipe]] = {
    FEDE: Recipe(STRUCTURE, rate=0.0),
    MMFEDE: Recipe({"dual": False}),
    MMFEDEC: Recipe({"dual": False, "contrast": 0.1}),
    MMFEDPROX: Recipe({"dual": False, "prox": 0.01}),
    MMFEDLU: Recipe({"dual": True, "logits": 1.0, "logits_way": "up", "feature": 0.0}),
    MMFED3: Recipe({"dual": True, "logits": 1.0, "logits_way": "both", "feature": 0.01}),
    S_IND: Recipe(STRUCTURE, "alone", rate=0.0),
    MM_IND: Recipe({"dual": False}, "alone"),
    MM_CEN: Recipe({"dual": False}, "centre", rate=1.0),
}
"""Name -> definition, without the imputer."""
IMPUTING: Final[Mapping[str, Mapping[str, Any]]] = {
    NONE: {},
    "ae": {"impute": 0.1, "hide_share": 0.4},
    "cra": {"impute": 0.1, "hide_share": 0.4},
    "mmin": {"impute": 0.1, "hide_share": 0.4},
    "hide": {"impute": 0.1, "hide_share": 0.4, "steps": 5},
}
"""Imputer -> options."""


def spec(
    recipe: str,
    imputer: str = NONE,
    *,
    graph: str = BUSY,
    rate: float = RATE,
    setting: Mapping[str, Any] | None = None,
    tuning: bool = False,
    conditions: Mapping[str, Any] | None = None,
    **options: Any,
) -> MmFed3Run:
    """A run with its tuned options, apart from those given here.

    Args:
        recipe: a key of :data:`RECIPES`.
        imputer: a key of :data:`lichen_lab.benchmarks.studies.mmfed3_hide.variants.IMPUTERS`.
        graph: a key of :data:`BASE`.
        rate: of features that clients have.
        setting: fields of :class:`~lichen_lab.benchmarks.studies.mmfed3_hide.settings.MmFed3Setting`; not
            ``options``.
        tuning: evaluate on validation facts.
        conditions: further fields of
            :class:`~lichen_lab.benchmarks.studies.mmfed3_hide.settings.GraphConditions`.
        options: of the method.
    """
    chosen = RECIPES[recipe]
    own = {
        "fusion": FUSION,
        "imputer": imputer,
        **COMMON[graph],
        **IMPUTING[imputer],
        **chosen.options,
        **options,
    }
    whole = replace(BASE[graph], **dict(setting or {}), options=own)
    own_rate = rate if chosen.rate is None else chosen.rate
    who = GraphConditions(rate=own_rate, who=chosen.who, **dict(conditions or {}))
    return MmFed3Run(graph, setting=whole, conditions=who, tuning=tuning)


def line(title: str, under: str, **more: Any) -> Line:
    """A line of a table: its title, its conditions in words; the rest as of :func:`spec`."""
    return Line(title, spec(*PLACES[title], **more), under)


TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    FEDE: (),
    MMFEDE: ({"fusion": "weighted"},),
    MMFEDEC: ({"contrast": 0.01}, {"contrast": 1.0}),
    MMFEDPROX: ({"prox": 0.001}, {"prox": 0.1}),
    MMFEDLU: ({"logits": 0.1}, {"logits": 3.0}),
    MMFED3: ({"logits": 0.1}, {"logits": 3.0}, {"feature": 0.0}, {"feature": 0.1}),
    OURS: ({"impute": 0.01}, {"impute": 1.0}, {"hide_share": 0.0}, {"steps": 10}, {"gradient_steps": 0}),
}
"""Method's title -> other options that are tried."""
RATES_TRIED: Final[Sequence[Mapping[str, Any]]] = (
    {"lr": 0.01},
    {"lr": 0.02},
    {"lr": 0.05},
    {"dense_lr": 0.0003},
    {"dense_lr": 0.003},
    {"gamma": 6.0},
)
"""Fields of the setting that are tried with every method."""
