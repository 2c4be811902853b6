"""Options and learning rates of every method, on seeds that no table uses, with validation facts."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Line, Part
from lichen_lab.benchmarks.study.part import in_words, lines

_tuning = partial(v.line, tuning=True)


def _tried(title: str) -> tuple[Line, ...]:
    changes = ({}, *v.TRIED[title], *({"setting": setting} for setting in v.RATES_TRIED))
    return lines(_tuning, (title,), in_words(changes))


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds of their own and validation facts",
    variants=(
        *(line for title in v.TRIED for line in _tried(title)),
        *lines(
            _tuning,
            (v.OURS,),
            {f"fusion: {words}": {"fusion": fusion} for fusion, words in v.FUSIONS.items()},
        ),
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
