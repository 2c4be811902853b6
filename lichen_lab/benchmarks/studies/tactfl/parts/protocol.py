"""The paper's protocol: 200 rounds, batches of 16; its pieces beside other methods and the paper's figures.

The text of the paper names neither the number of devices nor how many of them train in a round: 20, and five
drawn anew for each round, are ours.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.result import Goal, ResultRow, Say, row
from lichen_lab.benchmarks.studies.tactfl import settings
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.parts.missing import PAPER, RATES
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome
from lichen_lab.benchmarks.studies.tactfl.variants import F1, Line, Part, Results
from lichen_lab.benchmarks.study.part import lines, usual
from lichen_lab.simulation.data.sets import dsads

ROUNDS: Final = 200
LOOKS: Final = (5, 15, 30, 50, 75, 100, 150, 200)
SETTING: Final[Mapping[str, Any]] = {
    "batch": 16,
    "rounds": ROUNDS,
    "chosen": 5,
    "looks": LOOKS,
    "lr": 0.001,
}
"""The learning rate is the default of the product's method; the tables' .002 was tuned for batches of 128."""
CONDITIONS: Final[Mapping[str, Any]] = {"devices": 20}
OPTIONS: Final[Mapping[str, Any]] = {"head_every": 5, "finetune_batch": 128}
"""No encoder depends on the head, so it is trained where it is evaluated. Fine-tuning, which is not in the
paper, has the batches that it was tuned with."""
COMPLETE: Final = "200 rounds of batches of 16"
_UNDERS: Final = (*RATES, 0.0)
_TITLES: Final = (
    v.TACTFL_PLAIN,
    v.TACTFL_PLAIN_TUNED,
    v.BASELINES[v.RANDOM],
    v.NO_CONTRAST_TUNED,
    v.LABELLED_ONLY,
)
_OTHERS: Final = (v.TACTFL, v.TACTFL_TUNED, v.BASELINES[v.AUTOENCODER], v.AUTOENCODER_TUNED)
_AHEAD: Final = (
    (v.TACTFL_PLAIN, v.BASELINES[v.RANDOM]),
    (v.TACTFL_PLAIN_TUNED, v.LABELLED_ONLY),
    (v.TACTFL_PLAIN_TUNED, v.NO_CONTRAST_TUNED),
)
_ENDS_TUNED: Final = frozenset(
    title for title, line in {**v.LINES, **v.PAIRED}.items() if line.end == settings.TUNED
)
ALONE: Final[Mapping[str, str]] = {
    settings.alone(modality.name): f"F1 with the {modality.name} alone, %" for modality in dsads.MODALITIES
}
"""Test set -> its metric in rows; UCI-HAR has the first two."""


def under(rate: float = 0.0) -> str:
    """A rate of missing modalities as text."""
    return f"{COMPLETE}, missing {rate:g}" if rate else COMPLETE


def after(round_: int) -> str:
    """The metric of a version before the last one."""
    return f"F1 after {round_} rounds, %"


def changes(
    rate: float = 0.0, conditions: Mapping[str, Any] | None = None, **setting: Any
) -> dict[str, Mapping[str, Any]]:
    """Changes of a run to the paper's protocol, beside the options of :data:`OPTIONS`."""
    return {
        "conditions": {**CONDITIONS, "missing": rate, **(conditions or {})},
        "setting": {**SETTING, **setting},
    }


def rows(results: Results) -> list[ResultRow]:
    """Figures and differences, F1 by round, and F1 with one modality alone."""
    made = usual(results)
    for variant, runs in results.pairs():
        outcomes = list(runs.values())
        for test, metric in ALONE.items():
            scores = [one.scores[settings.TRAINED] for one in outcomes]
            made += results.row(variant, metric, [score[test]["f1"] for score in scores if test in score])
        if variant.method not in _ENDS_TUNED:
            made += _by_round(results, variant, outcomes)
    return made


def _by_round(results: Results, variant: Line, outcomes: list[TactflOutcome]) -> list[ResultRow]:
    looks: dict[int, list[float]] = {}
    for outcome in outcomes:
        for round_, f1 in outcome.by_round[:-1]:
            looks.setdefault(round_, []).append(f1)
    return [row for round_, f1 in looks.items() for row in results.row(variant, after(round_), f1)]


def reported(title: str) -> str:
    """The name of a method's figures in the paper."""
    return f"{'TACTFL' if title == v.TACTFL_PLAIN else title}, as the paper reports"


def published(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """The figures of the paper's table 3 under the names of this part's conditions."""
    del quick, say
    return [
        row(v.UCI_HAR, reported(title), under(rate), F1, [f1])
        for title, figures in PAPER.items()
        if title != v.TACTFL
        for rate, f1 in zip(RATES, figures, strict=True)
    ]


def at(title: str, words: str, **given: Any) -> Line:
    """A line at the paper's protocol; see :func:`lichen_lab.benchmarks.studies.tactfl.variants.line`."""
    return v.line(title, words, **{**OPTIONS, **given})


PROTOCOL: Final = Part(
    name="protocol",
    place=1,
    title="the paper's rounds and batches: its pieces, and what the paper reports",
    variants=lines(at, _TITLES, {under(rate): changes(rate) for rate in _UNDERS}),
    versus=_AHEAD,
    rows=rows,
    computed=published,
    goals=tuple(
        Goal(F1, limit, above=True, setting=under(rate), method=v.TACTFL_PLAIN, dataset=v.UCI_HAR)
        for rate, limit in zip(RATES, (77.9, 75.8, 75.1), strict=True)
    ),
    by_default=False,
)
OTHERS: Final = Part(
    name="protocol_others",
    place=1,
    title="the paper's rounds and batches: its pieces beside ours and autoencoders",
    variants=lines(
        at, (v.TACTFL_PLAIN, *_OTHERS, v.TACTFL_PLAIN_TUNED), {under(rate): changes(rate) for rate in _UNDERS}
    ),
    versus=(
        (v.TACTFL, v.TACTFL_PLAIN),
        (v.TACTFL_PLAIN, v.BASELINES[v.AUTOENCODER]),
        (v.TACTFL_PLAIN_TUNED, v.TACTFL_TUNED),
        (v.TACTFL_PLAIN_TUNED, v.AUTOENCODER_TUNED),
    ),
    rows=rows,
    by_default=False,
)
WEIGHTS: Final = Part(
    name="weights",
    place=2,
    title="the paper's rounds and batches: weights of devices",
    variants=lines(at, (v.TACTFL_PLAIN, *v.WEIGHTS), {under(rate): changes(rate) for rate in (0.5, 0.0)}),
    versus=tuple((v.TACTFL_PLAIN, other) for other in v.WEIGHTS),
    rows=rows,
    by_default=False,
)
PAIRS: Final = Part(
    name="pairs",
    place=2,
    title="the paper's rounds and batches: which segments are contrasted",
    variants=(
        *lines(
            at,
            (v.TACTFL_PLAIN, v.TACTFL_PLAIN_TUNED, v.TACTFL_SELF, v.TACTFL_SELF_TUNED),
            {under(): changes()},
        ),
        *lines(at, (v.TACTFL_PLAIN, v.TACTFL_SAME), {under(0.8): changes(0.8)}),
    ),
    versus=(
        (v.TACTFL_SELF, v.TACTFL_PLAIN),
        (v.TACTFL_SELF_TUNED, v.TACTFL_PLAIN_TUNED),
        (v.TACTFL_PLAIN, v.TACTFL_SAME),
    ),
    rows=rows,
    by_default=False,
)
_SHORT: Final = 50
"""Rounds after which the paper's pieces gain nothing more on UCI-HAR (``by_round`` of the first seed)."""
BEYOND: Final = Part(
    name="beyond",
    place=2,
    title=f"one step beyond the paper: each modality with itself, too; {_SHORT} rounds, five seeds",
    variants=lines(
        at,
        (v.TACTFL_PLAIN, v.TACTFL_PLAIN_TUNED, v.TACTFL_SELF, v.TACTFL_SELF_TUNED),
        {
            under(rate).replace(f"{ROUNDS}", f"{_SHORT}", 1): changes(
                rate, rounds=_SHORT, looks=tuple(one for one in LOOKS if one <= _SHORT)
            )
            for rate in (0.5, 0.0)
        },
    ),
    versus=((v.TACTFL_SELF, v.TACTFL_PLAIN), (v.TACTFL_SELF_TUNED, v.TACTFL_PLAIN_TUNED)),
    rows=rows,
    by_default=False,
    seeds=(0, 1, 2, 3, 4),
)
CONFIDENCE: Final = 0.95
"""Of pseudo-labels, for all methods that use them; found with FedAvg by the part ``rivals_tune``."""
BEST: Final[Mapping[str, Mapping[str, float]]] = {
    v.FEDAVG: {},
    v.FEDOPT: {"server_lr": 0.001},
    v.FEDPROX: {"prox": 0.1},
    v.MOON: {"moon": 1.0},
    v.FPL: {"fpl": 1.0},
    v.FEDMSPLIT: {"temperature": 0.1},
}
"""Method by pseudo-labels -> its best own options of the same part."""
_BY_LABELS: Final = tuple(v.BASELINES[name] for name in BEST)


def _rival(title: str, words: str, **given: Any) -> Line:
    own = next((options for name, options in BEST.items() if v.BASELINES[name] == title), None)
    return at(title, words, **given, **({} if own is None else {"confidence": CONFIDENCE, **own}))


RIVALS: Final = Part(
    name="rivals",
    place=2,
    title="the paper's rounds and batches: methods that the paper compares with, by pseudo-labels",
    variants=lines(
        _rival,
        (v.TACTFL_PLAIN_TUNED, v.LABELLED_ONLY, *_BY_LABELS),
        {under(rate): changes(rate) for rate in RATES},
    ),
    versus=tuple((title, v.LABELLED_ONLY) for title in _BY_LABELS),
    rows=rows,
    by_default=False,
)
MISSING: Final = Part(
    name="protocol_missing",
    place=2,
    title="the paper's rounds and batches: rates of missing modalities from .1 to .9 (the paper's table 4)",
    variants=lines(
        at,
        (v.BASELINES[v.RANDOM], v.TACTFL_PLAIN, v.TACTFL_PLAIN_TUNED),
        {under(rate): changes(rate) for rate in (0.1, 0.3, 0.5, 0.7, 0.9)},
    ),
    versus=((v.TACTFL_PLAIN, v.BASELINES[v.RANDOM]),),
    rows=rows,
    by_default=False,
)
LSTM: Final = Part(
    name="protocol_lstm",
    place=3,
    title="the paper's rounds, batches and encoder: two layers of LSTM",
    variants=lines(at, _TITLES, {f"{under(0.5)}, LSTM": changes(0.5, **v.LSTM)}),
    versus=_AHEAD,
    rows=rows,
    by_default=False,
)
DSADS: Final = Part(
    name="dsads",
    place=3,
    title="DSADS by pairs of sensors, the paper's rounds and batches, unseen people, one sensor alone",
    variants=tuple(
        line
        for fleet in v.DSADS
        for line in lines(
            partial(at, fleet=fleet),
            (*_TITLES, v.BASELINES[v.AUTOENCODER], v.AUTOENCODER_TUNED),
            {COMPLETE: {"setting": {**SETTING, "chosen": 3}}},
        )
    ),
    versus=(*_AHEAD, (v.TACTFL_PLAIN, v.BASELINES[v.AUTOENCODER])),
    rows=rows,
    by_default=False,
)
