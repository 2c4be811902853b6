"""The device that only observes: start it, read its live predictions, measure its memory."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.results import ObservedPrediction, ObserverResults
from lichen_lab.demo.core.side_jobs import lines
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.processes import environment
from lichen_lab.simulation.processes.process import Child

_DEPLOY_S: Final = 60.0
_SLACK_S: Final = 30.0
ObserverT = TypeVar("ObserverT", bound=ObserverResults)


def parse(rows: Iterable[dict[str, Any]]) -> list[ObservedPrediction]:
    """Predictions from the lines of an agent's output file."""
    return [
        ObservedPrediction(
            t=float(row["t"]),
            label=str(row["label"]),
            truth=row.get("truth"),
            confidence=float(max(row["probabilities"])),
            present={name: bool(here) for name, here in row["present"].items()},
            latency_ms=float(row.get("latency_ms") or 0.0),
        )
        for row in rows
    ]


async def initial_results(kind: type[ObserverT], fleet: DemoFleet[Any], name: str, person: int) -> ObserverT:
    """Results of an observing device before its first prediction; tests whether torch is installed."""
    place = fleet.place
    free = await asyncio.to_thread(place.torch_free)
    python = str(place.python)
    return kind(name, person, python, torch_free=free, how=place.how, fault=fleet.stage.fault)


async def listen(
    fleet: DemoFleet[Any],
    child: Child,
    results: ObserverResults,
    *,
    what: str,
    over: Callable[[], bool],
    bound_s: float,
) -> None:
    """Wait until ``over``, and measure the device's memory meanwhile.

    Raises:
        Transient: not in ``bound_s``; the message says ``what`` was waited for.
    """
    sampled: list[tuple[float, float]] = []

    def heard() -> bool:
        if child.pid is not None:
            sampled.append(environment.memory_mb(child.pid))
        return over()

    await fleet.wait(what, heard, bound_s)
    if sampled:
        # The median: a short-lived child process does not count.
        results.memory_mb, results.rss_mb = sorted(sampled)[len(sampled) // 2]


def describe(results: ObserverResults) -> str:
    """Accuracy and memory, for people."""
    whole, failing = results.accuracy() or 0.0, results.accuracy(failing=True) or 0.0
    return (
        f"{results.name}, live on person {results.person}: {100 * whole:.0f} % of {len(results.predictions)} "
        f"windows right; {100 * failing:.0f} % while its gyroscope was silent; "
        f"memory {results.memory_mb or 0:.0f} MB (PSS), {results.rss_mb or 0:.0f} MB (RSS)"
    )


async def observe(fleet: DemoFleet[Any]) -> ObserverResults:
    """Start the observing agent, wait for its model, and read its predictions until its stream ends."""
    screen, path = fleet.screen, fleet.layout.predictions(spar_fleet.OBSERVER)
    results = await initial_results(ObserverResults, fleet, spar_fleet.OBSERVER, spar_fleet.OBSERVED)
    torch = "absent" if results.torch_free else "PRESENT"
    screen.say(f"{results.name} observes in {results.how}; torch there: {torch}")
    child = await fleet.start_observer(results.name)
    await fleet.wait(f"{results.name} to fetch the model and predict", lambda: bool(lines(path)), _DEPLOY_S)
    screen.say(f"{results.name} has its model and predicts")
    length = fleet.stage.lengths_s[results.name]
    last = length - 2 * fleet.stage.task.window.length_s

    def over() -> bool:
        results.predictions = parse(lines(path))
        known = results.accuracy()
        if known is not None:
            right = f"{100 * known:.0f} % of {len(results.predictions)} windows right"
            screen.note = f"{results.name}, live: {right}"
        return bool(results.predictions) and results.predictions[-1].t >= last

    what = f"the end of {results.name}'s stream ({length:.0f} s of it)"
    bound_s = length / spar_fleet.OBSERVER_SPEED + _SLACK_S
    await listen(fleet, child, results, what=what, over=over, bound_s=bound_s)
    results.version = fleet.view.model.version if fleet.view.model else None
    screen.say(describe(results))
    return results
