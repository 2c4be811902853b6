"""The rollouts' section of the page."""

from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from lichen.demo.report import style
from lichen.demo.rollout import plots
from lichen.demo.rollout.story import COMMITTED, ROLLED_BACK, RolloutStory

_WORDS = {COMMITTED: "kept it", ROLLED_BACK: "dropped it by itself"}


def section(story: RolloutStory | None, environment: Environment) -> Markup:
    """The section as HTML; empty where no watch ever predicted.

    Args:
        story: the last act.
        environment: the page's, with its filters.
    """
    if story is None or not any(story.said.values()):
        return Markup()
    template = environment.from_string((files("lichen.demo.rollout") / "section.html").read_text())
    figure = style.two_widths(lambda: {"timeline": plots.timeline(story)})["timeline"]
    return Markup(template.render(rollout=story, figure=figure, outcome=_outcome, rows=_rows(story)))  # noqa: S704 - escaped by the environment


def _outcome(phase: str) -> str:
    return _WORDS.get(phase, phase.replace("_", " "))


def _rows(story: RolloutStory) -> list[dict[str, object]]:
    """A row for each device that tried something in the last two rollouts."""
    found: list[dict[str, object]] = []
    for release in (story.bad, story.good):
        if release is None:
            continue
        for watcher in story.watchers:
            move = story.last(watcher.name, release.version)
            if move is not None:
                answered = story.windows(watcher.name, release.version)
                found.append({"release": release, "watcher": watcher, "move": move, "answered": answered})
    return found
