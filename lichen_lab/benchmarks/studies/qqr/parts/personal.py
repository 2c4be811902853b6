"""Personalisation on unseen people: a device's own head, or prototypes, blended with the global ones."""

from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF
from lichen_lab.benchmarks.studies.qqr.probes import GLOBAL, ONE_DEAD, PERSONAL, WHOLE, figure
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, Results, line
from lichen_lab.benchmarks.study.part import above

ACCURACY: Final = "accuracy on the person's other windows, %"
_WHOLE: Final = "trained on whole windows"
_LACKING: Final = f"trained with {HALF}"


def _variant(method: str, under: str) -> Line:
    flow = v.CLEAN if method == v.FC else v.HALF
    return line(method, under, flow, v.quantity(method), "personal")


def _rows(results: Results) -> list[ResultRow]:
    rows = []
    for variant in results.part.variants:
        runs = results.of(variant.method, variant.under).values()
        probes = [one.probes["personal"] for one in runs]
        for sensors in (WHOLE, ONE_DEAD):
            base = [one[figure(GLOBAL, sensors)] for one in probes]
            for kind in (GLOBAL, *PERSONAL):
                shown = Line(kind, variant.spec, f"{variant.under}; {sensors}")
                own = [one[figure(kind, sensors)] for one in probes]
                rows += results.row(shown, ACCURACY, own)
                if kind != GLOBAL:
                    margins = [a - b for a, b in zip(own, base, strict=True)]
                    rows += results.row(shown, above(GLOBAL), margins)
    return rows


PART: Final = Part(
    name="personal",
    place=8,
    title="what unseen people gain whose devices keep a head or prototypes of their own",
    variants=(_variant(v.FC, _WHOLE), _variant(v.PNR, _LACKING)),
    rows=_rows,
)
