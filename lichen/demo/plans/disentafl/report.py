"""Story in, one self-contained HTML file out."""

from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lichen.demo.plans.disentafl import plots
from lichen.demo.plans.disentafl.cast import IN_WORDS
from lichen.demo.plans.disentafl.story import RoutedStory, WatchStory
from lichen.demo.report import plots as common
from lichen.demo.report import style
from lichen.demo.report.render import percent, points, size
from lichen.spar import LABEL_NAMES
from protocol.task import LABEL


def figures(story: RoutedStory) -> dict[str, Markup]:
    """All figures that the story has data for, as SVG for a desk and for a phone."""
    return style.two_widths(lambda: _drawn(story))


def _drawn(story: RoutedStory) -> dict[str, str]:
    changed = plugged(story)
    drawn: dict[str, str] = {}
    drawn["byround"] = plots.by_round(story)
    drawn["scores"] = plots.scores(story)
    if story.blobs:
        drawn["moved"] = plots.moved(story)
        drawn["routes"] = plots.routes(story)
        if changed is not None and changed.moves:
            drawn["gained"] = plots.gained(changed, story)
    if story.confusion:
        drawn["confusion"] = common.confusion(cast("Any", story))
    if story.observer and story.observer.predictions:
        drawn["timeline"] = common.timeline(story.observer, story.labels)
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


def html(story: RoutedStory) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, points=points, size=size)
    template = environment.from_string((files("lichen.demo.plans.disentafl") / "page.html").read_text())
    return template.render(
        story=story,
        style=style.sheet(),
        figures=figures(story),
        words=IN_WORDS,
        label=LABEL,
        changed=plugged(story),
        score=lambda value, target: score(value, target, story),
        label_names=LABEL_NAMES,
    )


def write(story: RoutedStory, path: Path) -> None:
    """Write the page."""
    path.write_text(html(story), encoding="utf-8")
