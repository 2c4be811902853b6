"""The method's options, one at a time: encoders, aggregators, and the source of segments."""

from typing import Final

from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.variants import Line, Part
from lichen_lab.benchmarks.study.part import lines

ENCODERS: Final = Part(
    name="encoders",
    place=5,
    title="convolutions, and the paper's LSTM",
    variants=lines(
        v.line,
        v.SHORT,
        {"convolutions": {}, f"{v.LSTM['depth']}-layer LSTM({v.LSTM['width']})": {"setting": v.LSTM}},
    ),
    versus=v.AHEAD,
)


def _on(words: str, aggregator: dict[str, object], *titles: str) -> tuple[Line, ...]:
    return lines(v.line, (*v.OURS, *titles), {f"on {words}": {"setting": {"aggregator": aggregator}}})


AGGREGATORS: Final = Part(
    name="aggregators",
    place=6,
    title="similarity weights on FedAvg, FedAdam and FedYogi",
    variants=(
        *_on("FedAvg", {}, *v.EQUAL),
        *_on("FedAdam", dict(v.FEDADAM), *v.EQUAL),
        *_on("FedYogi", dict(v.FEDYOGI)),  # without equal weights: it differs from FedAdam in one sign
    ),
    versus=v.SIMILARITY,
)
SHARES: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
SEGMENTS: Final = Part(
    name="segments",
    place=3,
    title="length of the segments, and where they are cut from",
    variants=lines(
        v.line,
        v.OURS,
        {
            **{f"segments of {share:g} of a window": {"segment_share": share} for share in SHARES},
            "segments as in the table": {},
            "first and last segment of a window": {"segments": "ends"},
            "segments from the window alone": {"use_context": False},
        },
    ),
)
