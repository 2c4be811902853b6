"""One sensor dead at inference, without labels: fillings, and a model of the other sensor only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts import quantity
from lichen_lab.benchmarks.studies.qqr.probes import FILLS
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, Results, line
from lichen_lab.benchmarks.study.part import above

ACCURACY: Final = "accuracy with one sensor dead, %"
OURS: Final = "posterior-weighted prototypes"
_WHOLE: Final = "whole windows"
_ALONE: Final = "the other sensor alone, trained on whole windows"
"""Shown under every training condition: this model is always trained on whole windows."""
SENSORS: Final = ("accelerometer", "gyroscope")
_TRAINED: Final[Mapping[str, tuple[StreamConditions, tuple[str, ...]]]] = {
    _WHOLE: (v.CLEAN, (v.FC,)),
    quantity.HALF: (v.HALF, (v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT)),
    quantity.EVERY: (v.EVERY, (v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT)),
}
"""Training windows -> their stream, and the methods trained on it."""


@dataclass(frozen=True)
class _Contestant:
    """One line: a run, and its figure for a dead sensor."""

    name: str
    method: str
    under: str
    figure: Callable[[QqrOutcome, str], float]


def _final(outcome: QqrOutcome, dead: str) -> float:
    del dead
    return 100 * outcome.curve[max(outcome.curve)]


def _own(outcome: QqrOutcome, dead: str) -> float:
    return outcome.probes["dead_sensor"][dead]


def _filled(words: str) -> Callable[[QqrOutcome, str], float]:
    return lambda outcome, dead: outcome.probes["fillings"][f"{dead}: {words}"]


def _contestants(training: str, dead: str) -> list[_Contestant]:
    """The lines to compare; ours is the first."""
    other = next(name for name in SENSORS if name != dead)
    alone = _Contestant(_ALONE, _single(other), _WHOLE, _final)
    if training == _WHOLE:
        names = {words: words for words in FILLS} | {"prototypes": OURS, "mean feature": "mean of prototypes"}
        return [*(_Contestant(n, v.FC, training, _filled(w)) for w, n in names.items()), alone]
    methods = _TRAINED[training][1]
    ours = _Contestant(OURS, v.PNR, training, _own)
    rest = [_Contestant(m, m, training, _own) for m in methods if m != v.PNR]
    return [ours, *rest, alone]


def _single(sensor: str) -> str:
    return f"{sensor} alone"


def under(training: str, dead: str) -> str:
    """The conditions as text."""
    return f"{dead} dead; trained on {training}"


def _rows(results: Results) -> list[ResultRow]:
    rows = []
    for training in _TRAINED:
        for dead in SENSORS:
            ours, *others = _contestants(training, dead)
            for one in (ours, *others):
                runs = results.of(one.method, one.under)
                shown = Line(one.name, results.part.variants[0].spec, under(training, dead))
                rows += results.row(shown, ACCURACY, [one.figure(run, dead) for run in runs.values()])
            for one in others:
                shown = Line(OURS, results.part.variants[0].spec, under(training, dead))
                rows += results.row(shown, above(one.name), _margins(results, ours, one, dead))
    return rows


def _margins(results: Results, ours: _Contestant, theirs: _Contestant, dead: str) -> list[float]:
    sides = [
        {seed: one.figure(run, dead) for seed, run in results.of(one.method, one.under).items()}
        for one in (ours, theirs)
    ]
    return [sides[0][seed] - sides[1][seed] for seed in sorted(sides[0].keys() & sides[1].keys())]


def _asked(training: str) -> str:
    return "fillings" if training == _WHOLE else "dead_sensor"


def _variants() -> tuple[Line, ...]:
    trained = [
        line(method, training, flow, v.quantity(method), _asked(training))
        for training, (flow, methods) in _TRAINED.items()
        for method in methods
    ]
    singles = [line(_single(name), _WHOLE, v.CLEAN, v.quantity(v.FC), modalities=(name,)) for name in SENSORS]
    return (*trained, *singles)


PART: Final = Part(
    name="dead_sensor",
    place=6,
    title="one sensor dead at inference, unlabelled",
    variants=_variants(),
    rows=_rows,
    goals=tuple(
        Goal(above(words), 0.0, above=True, setting=under(quantity.HALF, dead), method=OURS)
        for dead in SENSORS
        for words in (v.ZP_INPUT, v.ZP_FEATURE)
    ),
)
