"""Options and learning rates of every method, on seeds and people that no table uses."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Part, Variant, scores
from lichen_lab.benchmarks.studies.tactfl.settings import TRAINED, TUNED

_AS_IT_IS: Final = "as in the tables"
_TITLES: Final = {n.OURS: n.TACTFL, **n.BASELINES}
_TUNED: Final = {
    n.OURS: n.TACTFL_TUNED,
    n.RANDOM: n.NO_CONTRAST_TUNED,
    n.AUTOENCODER: n.AUTOENCODER_TUNED,
}


def _variants() -> tuple[Variant, ...]:
    made = []
    for method in _TITLES:
        changes: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [(_AS_IT_IS, {}, {})]
        if method not in v.ALONE:
            changes += [(f"lr {lr:g}", {"lr": lr}, {}) for lr in v.LEARNING_RATES]
        changes += [(_words(tried), {}, tried) for tried in v.TRIED.get(method, ())]
        changes += [(_words(tune), tune, {}) for tune in v.TUNES]
        for under, setting, options in changes:
            run = v.one(v.UCI_HAR, method, setting=setting, tuning=True, **options)
            made.append(Variant(_TITLES[method], run, under, TRAINED))
            if method in _TUNED:
                made.append(Variant(_TUNED[method], run, under, TUNED))
    return tuple(made)


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds and people of their own",
    variants=_variants(),
    rows=scores,
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
