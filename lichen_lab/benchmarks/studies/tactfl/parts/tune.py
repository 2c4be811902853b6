"""Options and learning rates of every method, on seeds and people that no table uses."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.variants import Line, Part
from lichen_lab.benchmarks.study.part import in_words, lines


def _tried(method: str) -> tuple[Line, ...]:
    """A method's run with each change, by each end that tables show."""
    settings = [{"lr": lr} for lr in v.LEARNING_RATES if method not in v.ALONE]
    changes = [{}, *({"setting": setting} for setting in settings), *v.TRIED.get(method, ())]
    changes += [{"setting": tune} for tune in v.TUNES]
    titles = [title for title, setup in v.LINES.items() if setup.method == method and setup.options is None]
    return lines(partial(v.line, tuning=True), titles, in_words(changes))


PART: Final = Part(
    name="tune",
    place=9,
    title="options of each method, on seeds and people of their own",
    variants=tuple(line for method in (v.METHOD, *v.BASELINES) for line in _tried(method)),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
