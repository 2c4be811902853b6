"""The rules and their titles, the training, the conditions: the table to change."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.labels.settings import (
    DATASETS,
    OWN,
    UNMET,
    LabelOutcome,
    LabelRun,
    LabelSetting,
    PeopleConditions,
)
from lichen_lab.benchmarks.studies.labels.strategies import LINEAR
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine, usual
from lichen_lab.benchmarks.study.part import Part as StudyPart

ACCURACY: Final = "accuracy, unmet people, %"
F1: Final = "macro-F1, unmet people, %"
OWN_ACCURACY: Final = "accuracy, own later windows, %"
OWN_F1: Final = "macro-F1, own later windows, %"
START: Final = "start model: accuracy, unmet people, %"
OWN_START: Final = "start model: accuracy, own later windows, %"
ON_BAD: Final = "labels on windows of bad quality, % (faulty devices)"
CLASSES: Final = "classes among a device's labels"
OWN_WORDS: Final = "own later windows: "
"""Before a paired difference of the accuracy on a device's own later windows."""

Line = StudyLine[LabelRun, LabelOutcome]
Results = PartResults[LabelRun, LabelOutcome]


def _of(field: str, view: str) -> Callable[[LabelOutcome], float | None]:
    return lambda outcome: getattr(outcome, field).get(view)


FIGURES: Final = (
    Figure[LabelOutcome](ACCURACY, _of("accuracy", UNMET)),
    Figure[LabelOutcome](F1, _of("macro_f1", UNMET)),
    Figure[LabelOutcome](OWN_ACCURACY, _of("accuracy", OWN)),
    Figure[LabelOutcome](OWN_F1, _of("macro_f1", OWN)),
    Figure[LabelOutcome](START, _of("start", UNMET)),
    Figure[LabelOutcome](OWN_START, _of("start", OWN)),
    Figure[LabelOutcome](CLASSES, lambda outcome: outcome.classes),
)
own_accuracy: Final = FIGURES[2].of


def rows(results: Results) -> list[ResultRow]:
    """The usual rows, and the paired differences on the device's own later windows."""
    own = [
        row
        for ours, theirs in results.part.versus
        for row in results.margins(ours, (theirs,), own_accuracy, OWN_WORDS)
    ]
    return [*usual(results), *own]


Part = partial(StudyPart[LabelRun, LabelOutcome], figures=FIGURES, rows=rows)
"""A part with the study's figures."""

ASKED: Final = "asked"
RANDOM: Final = "random"
RULES: Final[Mapping[str, str]] = {
    ASKED: "asked",
    RANDOM: "random",
    "before": "without typicality and signal (the rule before)",
    "margin": "margin alone (margin sampling)",
    "distance": "distance alone",
    "coreset": "k-center on inner features (core-set)",
    "badge": "BADGE",
}
"""Name in ``strategies`` -> its title."""
BUDGETS: Final = (10, 15, 30, 60)
"""Labels on a device in the end."""
USUAL: Final = 30
TABLE: Final = "as in the tables"
TRAINING: Final[Mapping[str, Any]] = {"epochs": 5, "batch": 32, "lr": 0.16}
START_TRAINING: Final[Mapping[str, Any]] = {"epochs": 2, "batch": 32, "lr": 0.16}
SEEDS: Final = 5
TUNING_SEEDS: Final = (100, 101, 102, 103, 104, 105)
"""No table uses these."""


def title(rule: str, labels: int) -> str:
    """``30 asked``."""
    return f"{labels} {RULES[rule]}"


def line(
    fleet: str,
    rule: str,
    labels: int,
    under: str = TABLE,
    *,
    people: Mapping[str, Any] | None = None,
    tuning: bool = False,
    method: str = "",
    linear: bool = False,
    **setting: Any,
) -> Line:
    """A line: data set, rule, labels on a device, the conditions in words, and what they change.

    ``linear``: a linear classifier in place of the fleet's training.
    """
    options = {"config": TRAINING, "start_config": START_TRAINING, **setting}
    conditions = PeopleConditions(**(people or {}))
    run = LabelRun(fleet, LINEAR * linear + rule, LabelSetting(labels, **options), conditions, tuning=tuning)
    return Line(method or title(rule, labels), run, under)


def everywhere(pairs: Iterable[tuple[str, int]], under: str = TABLE, **changes: Any) -> tuple[Line, ...]:
    """A line of each rule and number of labels on both data sets."""
    pairs = tuple(pairs)
    return tuple(line(fleet, rule, labels, under, **changes) for fleet in DATASETS for rule, labels in pairs)
