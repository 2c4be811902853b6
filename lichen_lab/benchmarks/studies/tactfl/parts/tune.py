"""Options and learning rates of every method, on seeds and people that no table uses."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import part
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Line, Part
from lichen_lab.benchmarks.studies.tactfl.settings import TRAINED, TUNED
from lichen_lab.benchmarks.study.part import condition_text

_TITLES: Final = {n.OURS: n.TACTFL, **n.BASELINES}
_TUNED: Final = {
    n.OURS: n.TACTFL_TUNED,
    n.RANDOM: n.NO_CONTRAST_TUNED,
    n.AUTOENCODER: n.AUTOENCODER_TUNED,
}

Change = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Fields of the setting, and options of the method."""


def _variants() -> tuple[Line, ...]:
    made = []
    for method in _TITLES:
        rates: list[Change] = [({"lr": lr}, {}) for lr in v.LEARNING_RATES if method not in v.ALONE]
        own: list[Change] = [({}, options) for options in v.TRIED.get(method, ())]
        changes: list[Change] = [({}, {}), *rates, *own, *((tune, {}) for tune in v.TUNES)]
        for setting, options in changes:
            under = condition_text({**setting, **options})
            run = v.spec(v.UCI_HAR, method, setting=setting, tuning=True, **options)
            made.append(part.line(_TITLES[method], run, under, TRAINED))
            if method in _TUNED:
                made.append(part.line(_TUNED[method], run, under, TUNED))
    return tuple(made)


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds and people of their own",
    variants=_variants(),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
