"""The observing watch: its live predictions, on a device without training software."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core import observer, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.core.traffic import TrafficCounter
from lichen_lab.demo.plans.disentafl import devices as cast
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, RoutedObserver
from lichen_lab.simulation.processes.process import Child
from protocol.tasks.task import LABEL

_SLACK_S: Final = 60.0
Line = dict[str, Any]


def predictions_of(path: Path, version: int) -> list[Line]:
    """A device's predictions with this version."""
    return [row for row in side_jobs.lines(path) if row["version"] == version]


def share_right(lines: Sequence[Line]) -> dict[str, float]:
    """By classification target, the share of right windows among those with a known truth."""
    right: dict[str, list[bool]] = {}
    for line in lines:
        answers = {LABEL: line, **line.get("targets", {})}
        for name, answer in answers.items():
            if answer.get("truth") is not None and "label" in answer:
                right.setdefault(name, []).append(answer["label"] == answer["truth"])
    return {name: sum(values) / len(values) for name, values in right.items()}


def regression_values(lines: Sequence[Line], target: str) -> list[tuple[float, float, float | None]]:
    """Of a regression target: time, prediction, and the truth if known."""
    found = []
    for line in lines:
        answer = line.get("targets", {}).get(target)
        if answer is not None:
            found.append((float(line["t"]), float(answer["value"]), answer.get("truth")))
    return found


def r2(pairs: Sequence[tuple[float, float, float | None]]) -> float | None:
    """r2 of the predictions with a known truth."""
    known = [(guess, true) for _, guess, true in pairs if true is not None]
    if not known:
        return None
    mean = sum(true for _, true in known) / len(known)
    spread = sum((true - mean) ** 2 for _, true in known)
    return 1 - sum((guess - true) ** 2 for guess, true in known) / max(spread, 1e-12)


async def listen(
    fleet: DemoFleet[PreparedDemo[DisentaflResults]], child: Child, traffic: TrafficCounter
) -> None:
    """Read the predictions over one turn of the observing device's recording."""
    name, screen = cast.OBSERVED.name, fleet.screen
    results = await observer.initial_results(RoutedObserver, fleet, name, cast.OBSERVED.person)
    length = fleet.stage.lengths_s[name]
    enough = length - 2 * fleet.stage.task.window.length_s
    lines: list[Line] = []

    def over() -> bool:
        lines[:] = predictions_of(fleet.layout.predictions(name), fleet.options.rounds)
        if not lines:
            return False
        screen.note = f"{name}, live: {len(lines)} windows"
        return bool(float(lines[-1]["t"]) - float(lines[0]["t"]) >= enough)

    what = f"a turn of {name}'s stream ({length:.0f} s of it)"
    bound_s = length / cast.OBSERVER_SPEED + _SLACK_S
    await observer.listen(fleet, child, results, what=what, over=over, bound_s=bound_s)
    # Predictions of its own model alone; of these, the last turn.
    lines = [line for line in lines if float(line["t"]) > float(lines[-1]["t"]) - length]
    results.predictions = observer.parse(lines)
    results.right, results.values = share_right(lines), regression_values(lines, cast.SPEED)
    results.explained = r2(results.values)
    results.version = traffic.pointers[name].version
    fleet.stage.results.observer = results
    right = ", ".join(f"{cast.IN_WORDS[name]} {100 * share:.0f} %" for name, share in results.right.items())
    screen.say(
        f"{name}, live on person {cast.OBSERVED.person}, by its accelerometer alone: right in {right}; "
        f"{cast.IN_WORDS[cast.SPEED]} r2 {results.explained or 0:.2f}; "
        f"memory {results.memory_mb or 0:.0f} MB (PSS)"
    )
