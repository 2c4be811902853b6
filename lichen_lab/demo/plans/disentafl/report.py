"""The report of the routed demo."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import of_windows
from lichen_lab.demo.page import DemoPage, percent
from lichen_lab.demo.plans.disentafl import plots
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.results import RoutedStory, WatchStory
from protocol.tasks.task import LABEL


def figures(story: RoutedStory) -> Mapping[str, str]:
    """All figures that the story has data for."""
    changed = plugged(story)
    drawn = {"byround": plots.by_round(story), "scores": plots.scores(story), **of_windows(story)}
    if story.blobs:
        drawn["moved"] = plots.moved(story)
        drawn["routes"] = plots.routes(story)
        if changed is not None and changed.moves:
            drawn["gained"] = plots.gained(changed, story)
    if story.observer and story.observer.values:
        drawn["speed"] = plots.speed(story.observer)
    return drawn


def plugged(story: RoutedStory) -> WatchStory | None:
    """The device that was given a sensor."""
    return next((device for device in story.devices if device.later), None)


def score(value: float | None, target: str, story: RoutedStory) -> str:
    """A share in percent, or r2."""
    if value is None or story.targets[target]:
        return percent(value)
    return f"{value:.2f}"


def given(story: RoutedStory) -> Mapping[str, Any]:
    """What the page names besides."""
    return {
        "words": IN_WORDS,
        "label": LABEL,
        "changed": plugged(story),
        "score": lambda value, target: score(value, target, story),
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.disentafl", figures, given)
