"""The device that only observes: started, listened to on its live stream, and weighed."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.results import ObservedPrediction, ObserverStory
from lichen_lab.demo.core.side_jobs import lines
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.processes import environment
from lichen_lab.simulation.processes.process import Child

_DEPLOY_S: Final = 60.0
_SLACK_S: Final = 30.0
ObserverT = TypeVar("ObserverT", bound=ObserverStory)


def parse(rows: Iterable[dict[str, Any]]) -> list[ObservedPrediction]:
    """An agent's lines as predictions."""
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


async def story_of(kind: type[ObserverT], fleet: DemoFleet[Any], name: str, person: int) -> ObserverT:
    """What is known of an observing device before it says anything; torch is looked for where it runs."""
    place = fleet.place
    free = await asyncio.to_thread(place.torch_free)
    python = str(place.python)
    return kind(name, person, python, torch_free=free, how=place.how, fault=fleet.stage.fault)


async def listen(
    fleet: DemoFleet[Any],
    child: Child,
    told: ObserverStory,
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
        # The median: a short-lived helper process does not count as the agent's size.
        told.memory_mb, told.rss_mb = sorted(sampled)[len(sampled) // 2]


def in_words(told: ObserverStory) -> str:
    """What it said and how large it is."""
    whole, failing = told.accuracy() or 0.0, told.accuracy(failing=True) or 0.0
    return (
        f"{told.name}, live on person {told.person}: {100 * whole:.0f} % of {len(told.predictions)} "
        f"windows right; {100 * failing:.0f} % while its gyroscope was silent; "
        f"memory {told.memory_mb or 0:.0f} MB (PSS), {told.rss_mb or 0:.0f} MB (RSS)"
    )


async def observe(fleet: DemoFleet[Any]) -> ObserverStory:
    """Start the observing agent, wait for its model, and listen to what it says until its stream ends."""
    screen, path = fleet.screen, fleet.layout.predictions(spar_fleet.OBSERVER)
    told = await story_of(ObserverStory, fleet, spar_fleet.OBSERVER, spar_fleet.OBSERVED)
    torch = "absent" if told.torch_free else "PRESENT"
    screen.say(f"{told.name} observes in {told.how}; torch there: {torch}")
    child = await fleet.start_observer(told.name)
    await fleet.wait(f"{told.name} to fetch the model and predict", lambda: bool(lines(path)), _DEPLOY_S)
    screen.say(f"{told.name} has its model and predicts")
    length = fleet.stage.lengths_s[told.name]
    last = length - 2 * fleet.stage.task.window.length_s

    def over() -> bool:
        told.predictions = parse(lines(path))
        known = told.accuracy()
        if known is not None:
            right = f"{100 * known:.0f} % of {len(told.predictions)} windows right"
            screen.note = f"{told.name}, live: {right}"
        return bool(told.predictions) and told.predictions[-1].t >= last

    what = f"the end of {told.name}'s stream ({length:.0f} s of it)"
    bound_s = length / spar_fleet.OBSERVER_SPEED + _SLACK_S
    await listen(fleet, child, told, what=what, over=over, bound_s=bound_s)
    told.version = fleet.view.model.version if fleet.view.model else None
    screen.say(in_words(told))
    return told
