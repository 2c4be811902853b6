"""How long segments are, as a share of the window; and segments from longer stretches of stream."""

from typing import Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Line, Part

SHARES: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
_LINES: Final = (n.TACTFL, n.TACTFL_TUNED)


def _variants() -> tuple[Line, ...]:
    made = [
        v.line(title, v.UCI_HAR, f"segments of {share:g} of a window", segment_share=share)
        for share in SHARES
        for title in _LINES
    ]
    made += [v.line(title, v.UCI_HAR, "segments as in the table") for title in _LINES]
    made += [
        v.line(title, v.UCI_HAR, "first and last segment of a window", segments="ends") for title in _LINES
    ]
    made += [
        v.line(
            title,
            v.UCI_HAR,
            "segments from the window alone",
            use_context=False,
        )
        for title in _LINES
    ]
    return tuple(made)


PART: Final = Part(
    name="segments",
    place=3,
    title="length of the segments, and where they are cut from",
    variants=_variants(),
)
