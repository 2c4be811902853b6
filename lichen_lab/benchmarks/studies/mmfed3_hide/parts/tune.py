"""Options and learning rates of every method, on seeds that no table uses, judged on validation facts."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Part, Variant, scores


def _variants() -> tuple[Variant, ...]:
    made = []
    for title in v.TRIED:
        changes: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [("as in the tables", {}, {})]
        changes += [(_words(tried), {}, tried) for tried in v.TRIED[title]]
        changes += [(_words(tried), tried, {}) for tried in v.RATES_TRIED]
        for words, setting, options in changes:
            run = v.one(*v.PLACES[title], setting=setting, tuning=True, **options)
            made.append(Variant(title, run, words))
    for fusion, words in v.FUSIONS.items():
        made.append(Variant(n.OURS, v.one(*v.PLACES[n.OURS], tuning=True, fusion=fusion), f"fusion: {words}"))
    return tuple(made)


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds of their own and validation facts",
    variants=_variants(),
    rows=scores,
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
