"""The observing watch: its model runs on its live stream, on a device without training software."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core import observer, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.core.traffic import Onlooker
from lichen_lab.demo.plans.disentafl import devices as cast
from lichen_lab.demo.plans.disentafl.results import RoutedObserver, RoutedStory
from lichen_lab.simulation.processes.process import Child
from protocol.tasks.task import LABEL

_SLACK_S: Final = 60.0
Line = dict[str, Any]


def said(path: Path, version: int) -> list[Line]:
    """The lines in which a device predicts with this version."""
    return [row for row in side_jobs.lines(path) if row["version"] == version]


def share_right(lines: Sequence[Line]) -> dict[str, float]:
    """By classification, the share of windows with a known truth that were right."""
    right: dict[str, list[bool]] = {}
    for line in lines:
        answers = {LABEL: line, **line.get("targets", {})}
        for name, answer in answers.items():
            if answer.get("truth") is not None and "label" in answer:
                right.setdefault(name, []).append(answer["label"] == answer["truth"])
    return {name: sum(values) / len(values) for name, values in right.items()}


def values(lines: Sequence[Line], target: str) -> list[tuple[float, float, float | None]]:
    """Of a regression: when, what was said, and the truth where it is known."""
    found = []
    for line in lines:
        answer = line.get("targets", {}).get(target)
        if answer is not None:
            found.append((float(line["t"]), float(answer["value"]), answer.get("truth")))
    return found


def explained(pairs: Sequence[tuple[float, float, float | None]]) -> float | None:
    """r2 of what was said, over the windows whose truth is known."""
    known = [(guess, true) for _, guess, true in pairs if true is not None]
    if not known:
        return None
    mean = sum(true for _, true in known) / len(known)
    spread = sum((true - mean) ** 2 for _, true in known)
    return 1 - sum((guess - true) ** 2 for guess, true in known) / max(spread, 1e-12)


async def listen(fleet: DemoFleet[PreparedDemo[RoutedStory]], child: Child, seen: Onlooker) -> None:
    """One turn of the observing device's recording, with the model of its route."""
    name, screen = cast.OBSERVED.name, fleet.screen
    told = await observer.story_of(RoutedObserver, fleet, name, cast.OBSERVED.person)
    length = fleet.stage.lengths_s[name]
    enough = length - 2 * fleet.stage.task.window.length_s
    lines: list[Line] = []

    def over() -> bool:
        lines[:] = said(fleet.layout.predictions(name), fleet.options.rounds)
        if not lines:
            return False
        screen.note = f"{name}, live: {len(lines)} windows"
        return bool(float(lines[-1]["t"]) - float(lines[0]["t"]) >= enough)

    what = f"a turn of {name}'s stream ({length:.0f} s of it)"
    bound_s = length / cast.OBSERVER_SPEED + _SLACK_S
    await observer.listen(fleet, child, told, what=what, over=over, bound_s=bound_s)
    # What its own model has said since it came; at the end, the last turn of it.
    lines = [line for line in lines if float(line["t"]) > float(lines[-1]["t"]) - length]
    told.predictions = observer.parse(lines)
    told.right, told.values = share_right(lines), values(lines, cast.SPEED)
    told.explained = explained(told.values)
    told.version = seen.pointers[name].version
    fleet.stage.story.observer = told
    heard = ", ".join(f"{cast.IN_WORDS[target]} {100 * share:.0f} %" for target, share in told.right.items())
    screen.say(
        f"{name}, live on person {cast.OBSERVED.person}, by its accelerometer alone: right in {heard}; "
        f"{cast.IN_WORDS[cast.SPEED]} r2 {told.explained or 0:.2f}; memory {told.memory_mb or 0:.0f} MB (PSS)"
    )
