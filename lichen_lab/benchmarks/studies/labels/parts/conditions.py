"""Other conditions: a person who errs, faulty sensors, uneven days, no model in the first session."""

from collections.abc import Iterable
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.variants import Line, Part, Results

WRONG: Final = "one label in ten is wrong"
UNEVEN: Final = "half of the classes are seldom, linear classifier"
LONGER: Final = "30 rounds"
COLD: Final = "no model in the first session"
FAULTY: Final = "2 of 6 sensors faulty in half of the time"
_DOUBLE: Final = ((v.ASKED, v.USUAL), (v.RANDOM, v.USUAL), (v.RANDOM, 2 * v.USUAL))
_VERSUS: Final = tuple((v.title(v.ASKED, v.USUAL), v.title(*pair)) for pair in _DOUBLE[1:])
_ANY: Final = ", windows of any quality"

WITH_ERRORS: Final = Part(
    name="wrong",
    place=4,
    title="one label in ten is another class",
    variants=v.everywhere(_DOUBLE, WRONG, wrong=0.1),
    versus=_VERSUS,
)
ON_UNEVEN_DAYS: Final = Part(
    name="uneven",
    place=5,
    title="half of a device's classes have 15 % of their windows",
    variants=v.everywhere(_DOUBLE, UNEVEN, people={"uneven": True}, linear=True),
    versus=_VERSUS,
)
LONGER_TRAINED: Final = Part(
    name="longer",
    place=3,
    title="three times as many rounds: whether the fleet had learned what the labels say",
    variants=v.everywhere((_DOUBLE[0], _DOUBLE[2]), LONGER, rounds=30),
    versus=_VERSUS[1:],
    by_default=False,
)
WITHOUT_MODEL: Final = Part(
    name="cold",
    place=6,
    title="no start model: in the first session the signal alone decides",
    variants=v.everywhere(_DOUBLE, COLD, start_rounds=0),
    versus=_VERSUS,
    by_default=False,
)


def _faulty(pairs: Iterable[tuple[str, bool]]) -> tuple[Line, ...]:
    return tuple(
        line
        for rule, any_quality in pairs
        for line in v.everywhere(
            [(rule, v.USUAL)],
            FAULTY,
            people={"faulty": 2},
            method=v.title(rule, v.USUAL) + (_ANY if any_quality else ""),
            any_quality=any_quality,
        )
    )


def _rows(results: Results) -> list[ResultRow]:
    """The usual rows, and how many labels were spent on windows of bad quality."""
    rows = v.rows(results)
    for line, runs in results.pairs():
        rows += results.row(line, v.ON_BAD, [one.bad_share for one in runs.values()])
    return rows


WITH_FAULTS: Final = Part(
    name="faulty",
    place=7,
    title="two devices with noise and stuck values in half of the time",
    variants=_faulty(((v.ASKED, False), (v.ASKED, True), (v.RANDOM, False), (v.RANDOM, True))),
    versus=(
        (v.title(v.ASKED, v.USUAL), v.title(v.ASKED, v.USUAL) + _ANY),
        (v.title(v.ASKED, v.USUAL), v.title(v.RANDOM, v.USUAL)),
        (v.title(v.ASKED, v.USUAL), v.title(v.RANDOM, v.USUAL) + _ANY),
    ),
    rows=_rows,
)
