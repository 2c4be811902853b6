"""The rollouts' section of the page."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.rollout import plots
from lichen_lab.demo.rollout.results import COMMITTED, ROLLED_BACK, RolloutStory

PARTS: Final = {"rollout": ("lichen_lab.demo.rollout", "section.html")}
"""The section's template."""
_WORDS: Final = {COMMITTED: "kept it", ROLLED_BACK: "dropped it by itself"}


def figures(story: RolloutStory | None) -> Mapping[str, str]:
    """The section's figure; none where no watch ever predicted."""
    return {} if story is None or not any(story.said.values()) else {"rollout": plots.timeline(story)}


def given(story: RolloutStory | None) -> Mapping[str, Any]:
    """What the section names."""
    return {"rollout": story, "outcome": _outcome, "rows": _rows(story) if story else []}


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
