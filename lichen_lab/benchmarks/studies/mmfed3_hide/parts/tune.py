"""Options and learning rates of every method, on seeds that no table uses, judged on validation facts."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Line, Part
from lichen_lab.benchmarks.study.part import condition_text

Change = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Fields of the setting, and options of the method."""


def _variants() -> tuple[Line, ...]:
    made = []
    for title in v.TRIED:
        own: list[Change] = [({}, options) for options in v.TRIED[title]]
        changes: list[Change] = [({}, {}), *own, *((setting, {}) for setting in v.RATES_TRIED)]
        for setting, options in changes:
            run = v.spec(*n.PLACES[title], setting=setting, tuning=True, **options)
            made.append(Line(title, run, condition_text({**setting, **options})))
    for fusion, words in v.FUSIONS.items():
        made.append(Line(n.OURS, v.spec(*n.PLACES[n.OURS], tuning=True, fusion=fusion), f"fusion: {words}"))
    return tuple(made)


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds of their own and validation facts",
    variants=_variants(),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
