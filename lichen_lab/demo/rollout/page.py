"""The rollouts' section of the page."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.rollout import plots
from lichen_lab.demo.rollout.results import COMMITTED, ROLLED_BACK, RolloutResults

PARTS: Final = {"rollout": ("lichen_lab.demo.rollout", "section.html")}
"""The section's template."""
_WORDS: Final = {COMMITTED: "kept it", ROLLED_BACK: "dropped it by itself"}


def figures(results: RolloutResults | None) -> Mapping[str, str]:
    """The section's figure; none if no watch predicted."""
    return {} if results is None or not any(results.said.values()) else {"rollout": plots.timeline(results)}


def template_values(results: RolloutResults | None) -> Mapping[str, Any]:
    """Values of the section's template."""
    return {"rollout": results, "outcome": _outcome, "rows": _rows(results) if results else []}


def _outcome(phase: str) -> str:
    return _WORDS.get(phase, phase.replace("_", " "))


def _rows(results: RolloutResults) -> list[dict[str, object]]:
    """A row for each device with a trial in the last two rollouts."""
    found: list[dict[str, object]] = []
    for release in (results.bad, results.good):
        if release is None:
            continue
        for watcher in results.watchers:
            move = results.last(watcher.name, release.version)
            if move is not None:
                answered = results.windows(watcher.name, release.version)
                found.append({"release": release, "watcher": watcher, "move": move, "answered": answered})
    return found
