"""Accuracy against bytes sent up: the whole model in float32, quantized, and only in some of the rounds."""

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, Results, line
from lichen_lab.benchmarks.study.part import usual

FLOAT32: Final[Mapping[str, str]] = {
    "FedAvg float32 (zero input)": v.ZP_INPUT,
    "FedAvg float32 (zero feature)": v.ZP_FEATURE,
}
"""Whole models in float32, one kind of padding each."""
_SMOOTH: Final = 3
"""Number of evaluations whose mean is a point of the smoothed curve."""


def _ours(codec: str, every: int = 1) -> Line:
    words = f"PNR, {codec}" + (f", model in every {every}th round" if every > 1 else "")
    return line(words, HALF, v.HALF, v.quantity(v.PNR, model_every=every), codec=codec)


def _coded(codec: str, every: int = 1) -> Line:
    words = f"FedAvg, {codec}" + (f", model in every {every}th round" if every > 1 else "")
    config = v.quantity(v.ZP_FEATURE, model_every=every)
    return line(f"{words} (zero feature)", HALF, v.HALF, config, codec=codec)


_CODED: Final = (_coded("int8"), _coded("int4"), _coded("int4", 4))
"""FedAvg with what saves PNR's bytes: neither the codec nor rounds without a model are of the paper."""
_OURS: Final = (_ours("int8"), _ours("int4"), _ours("int4", 4))
_BEST: Final = _ours("int4", 4).method


def same(theirs: str) -> str:
    """Metric: bytes until the final accuracy of ``theirs`` is reached."""
    return f"bytes to the accuracy of {theirs}, % of its own"


def reached(theirs: str) -> str:
    """Metric: whether that accuracy is reached."""
    return f"reaches the accuracy of {theirs} (1: yes)"


def smoothed(outcomes: Mapping[int, QqrOutcome]) -> dict[int, float]:
    """Mean over the seeds and over the last evaluations, by evaluated round, in %."""
    rounds = sorted(set.intersection(*(set(one.curve) for one in outcomes.values())))
    mean = [100 * fmean(one.curve[round_] for one in outcomes.values()) for round_ in rounds]
    return {
        round_: fmean(mean[max(0, place + 1 - _SMOOTH) : place + 1]) for place, round_ in enumerate(rounds)
    }


def bytes_at(outcomes: Mapping[int, QqrOutcome], round_: int) -> float:
    """Mean bytes sent up to a round, over the seeds."""
    return fmean(one.bytes_at[round_] for one in outcomes.values())


def bytes_to(outcomes: Mapping[int, QqrOutcome], accuracy: float) -> float | None:
    """Bytes until the smoothed curve first reaches an accuracy (%), or None."""
    for round_, reached in smoothed(outcomes).items():
        if reached >= accuracy:
            return bytes_at(outcomes, round_)
    return None


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for variant, runs in results.pairs():
        whole = [sum(one.bytes_up.values()) / 1e6 for one in runs.values()]
        rows += results.row(variant, "MB up, all devices and rounds", whole)
        for name in FLOAT32 if variant.method not in FLOAT32 else ():
            rows += _compared(results, variant, name)
    return rows


def _compared(results: Results, variant: Line, name: str) -> list[ResultRow]:
    """Our bytes to the final smoothed accuracy of another line, relative to its bytes."""
    ours, theirs = results.of(variant.method, variant.under), results.of(name, HALF)
    if not theirs:
        return []
    target = smoothed(theirs)[max(smoothed(theirs))]
    wanted, given = bytes_to(theirs, target), bytes_to(ours, target)
    rows = results.row(variant, reached(name), [float(given is not None)])
    if wanted is not None and given is not None:
        rows += results.row(variant, same(name), [100 * given / wanted])
    return rows


def _fedavg(name: str) -> Line:
    # It needs no prototypes. Its frames hold them, at under a hundredth of its bytes.
    return line(name, HALF, v.HALF, v.quantity(FLOAT32[name]), codec="float32")


PART: Final = Part(
    name="bytes",
    place=5,
    title="accuracy against bytes sent up, beside whole models in float32",
    variants=(*map(_fedavg, FLOAT32), *_CODED, *_OURS),
    versus=(
        *((ours.method, theirs) for ours in _OURS for theirs in FLOAT32),
        *((ours.method, theirs.method) for ours, theirs in zip(_OURS, _CODED, strict=True)),
    ),
    rows=_rows,
    goals=tuple(
        goal
        for theirs in FLOAT32
        for goal in (
            Goal(same(theirs), 5.0, setting=HALF, method=_BEST),
            Goal(reached(theirs), 0.5, above=True, setting=HALF, method=_BEST),
        )
    ),
)
