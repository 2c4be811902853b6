"""The methods, their tuned options, and the conditions: the table to change.

``lichen bench mmfed3_hide --part tune`` chose the options among :data:`TRIED` on seeds that no table uses,
evaluated on validation facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY, WHOLE
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Line
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    STRUCTURE,
    GraphConditions,
    MmFed3Run,
    MmFed3Setting,
    Who,
)

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
    n.FEDE: Recipe(STRUCTURE, rate=0.0),
    n.MMFEDE: Recipe({"dual": False}),
    n.MMFEDEC: Recipe({"dual": False, "contrast": 0.1}),
    n.MMFEDPROX: Recipe({"dual": False, "prox": 0.01}),
    n.MMFEDLU: Recipe({"dual": True, "logits": 1.0, "logits_way": "up", "feature": 0.0}),
    n.MMFED3: Recipe({"dual": True, "logits": 1.0, "logits_way": "both", "feature": 0.01}),
    n.S_IND: Recipe(STRUCTURE, "alone", rate=0.0),
    n.MM_IND: Recipe({"dual": False}, "alone"),
    n.MM_CEN: Recipe({"dual": False}, "centre", rate=1.0),
}
"""Name -> definition, without the imputer."""
IMPUTING: Final[Mapping[str, Mapping[str, Any]]] = {
    n.NONE: {},
    "ae": {"impute": 0.1, "hide_share": 0.4},
    "cra": {"impute": 0.1, "hide_share": 0.4},
    "mmin": {"impute": 0.1, "hide_share": 0.4},
    "hide": {"impute": 0.1, "hide_share": 0.4, "steps": 5},
}
"""Imputer -> options."""


def spec(
    recipe: str,
    imputer: str = n.NONE,
    *,
    graph: str = BUSY,
    rate: float = RATE,
    setting: Mapping[str, Any] | None = None,
    tuning: bool = False,
    **options: Any,
) -> MmFed3Run:
    """A run with its tuned options, apart from those given here.

    Args:
        recipe: a key of :data:`RECIPES`.
        imputer: a key of :data:`lichen_lab.benchmarks.studies.mmfed3_hide.names.IMPUTERS`.
        graph: a key of :data:`BASE`.
        rate: of features that clients have.
        setting: fields of :class:`~lichen_lab.benchmarks.studies.mmfed3_hide.settings.MmFed3Setting`; not
            ``options``.
        tuning: evaluate on validation facts.
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
    who = GraphConditions(rate=rate if chosen.rate is None else chosen.rate, who=chosen.who)
    return MmFed3Run(graph, setting=whole, conditions=who, tuning=tuning)


def line(title: str, under: str, **more: Any) -> Line:
    """A line of a table: its title, its conditions in words; the rest as of :func:`spec`."""
    return Line(title, spec(*n.PLACES[title], **more), under)


TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    n.FEDE: (),
    n.MMFEDE: ({"fusion": "weighted"},),
    n.MMFEDEC: ({"contrast": 0.01}, {"contrast": 1.0}),
    n.MMFEDPROX: ({"prox": 0.001}, {"prox": 0.1}),
    n.MMFEDLU: ({"logits": 0.1}, {"logits": 3.0}),
    n.MMFED3: ({"logits": 0.1}, {"logits": 3.0}, {"feature": 0.0}, {"feature": 0.1}),
    n.OURS: ({"impute": 0.01}, {"impute": 1.0}, {"hide_share": 0.0}, {"steps": 10}, {"gradient_steps": 0}),
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
