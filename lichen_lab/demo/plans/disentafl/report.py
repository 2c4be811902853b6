"""The report of the routed demo."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import window_figures
from lichen_lab.demo.page import DemoPage, percent
from lichen_lab.demo.plans.disentafl import plots
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, WatchResults
from protocol.tasks.task import LABEL


def figures(results: DisentaflResults) -> Mapping[str, str]:
    """All figures with data."""
    changed = plugged(results)
    drawn = {"byround": plots.by_round(results), "scores": plots.scores(results), **window_figures(results)}
    if results.blobs:
        drawn["moved"] = plots.moved(results)
        drawn["routes"] = plots.routes(results)
        if changed is not None and changed.moves:
            drawn["gained"] = plots.gained(changed, results)
    if results.observer and results.observer.values:
        drawn["speed"] = plots.speed(results.observer)
    return drawn


def plugged(results: DisentaflResults) -> WatchResults | None:
    """The device with a later sensor."""
    return next((device for device in results.devices if device.later), None)


def score(value: float | None, target: str, results: DisentaflResults) -> str:
    """A share in percent, or r2."""
    if value is None or results.targets[target]:
        return percent(value)
    return f"{value:.2f}"


def template_values(results: DisentaflResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "words": IN_WORDS,
        "label": LABEL,
        "changed": plugged(results),
        "score": lambda value, target: score(value, target, results),
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.disentafl", figures, template_values)
