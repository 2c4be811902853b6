"""The last step: the model goes to a device that only observes, and predicts on its live stream."""

import asyncio
from typing import Final

from lichen.demo import observer, plan
from lichen.demo.fleet import ONE_THREAD, Fleet
from lichen.demo.prepare import Stage
from lichen.demo.processes import Child
from lichen.demo.story import ObserverStory

_DEPLOY_S: Final = 60.0
_SLACK_S: Final = 30.0


async def observe(fleet: Fleet[Stage]) -> ObserverStory:
    """Start the observing agent, wait for its model, and listen to what it says until its stream ends."""
    place, screen = fleet.place, fleet.screen
    free = await asyncio.to_thread(place.torch_free)
    told = ObserverStory(
        plan.OBSERVER,
        plan.OBSERVED,
        str(place.python),
        torch_free=free,
        how=place.how,
        fault=fleet.stage.fault,
    )
    screen.say(f"{plan.OBSERVER} observes in {place.how}; torch there: {'absent' if free else 'PRESENT'}")
    argv = place.command("agent", "run", "--config", str(fleet.layout.config(plan.OBSERVER)))
    child = await fleet.keep(Child(plan.OBSERVER, argv, fleet.layout.log(plan.OBSERVER), ONE_THREAD))
    path = fleet.layout.predictions
    await fleet.wait(
        f"{plan.OBSERVER} to fetch the model and predict", lambda: bool(observer.predictions(path)), _DEPLOY_S
    )
    screen.say(f"{plan.OBSERVER} has its model and predicts")
    sampled: list[tuple[float, float]] = []
    length = fleet.stage.lengths_s[plan.OBSERVER]
    last = length - 2 * fleet.stage.task.window.length_s

    def over() -> bool:
        told.predictions = observer.predictions(path)
        if child.pid is not None:
            sampled.append(observer.memory_mb(child.pid))
        known = told.accuracy()
        if known is not None:
            right = f"{100 * known:.0f} % of {len(told.predictions)} windows right"
            screen.note = f"{plan.OBSERVER}, live: {right}"
        return bool(told.predictions) and told.predictions[-1].t >= last

    bound = length / plan.OBSERVER_SPEED + _SLACK_S
    await fleet.wait(f"the end of {plan.OBSERVER}'s stream ({length:.0f} s of it)", over, bound)
    if sampled:
        # The median: a short-lived helper process does not count as the agent's size.
        told.memory_mb, told.rss_mb = sorted(sampled)[len(sampled) // 2]
    told.version = fleet.view.model.version if fleet.view.model else None
    whole, failing = told.accuracy() or 0.0, told.accuracy(failing=True) or 0.0
    screen.say(
        f"{plan.OBSERVER}, live on person {plan.OBSERVED}: {100 * whole:.0f} % of {len(told.predictions)} "
        f"windows right; {100 * failing:.0f} % while its gyroscope was silent; "
        f"memory {told.memory_mb or 0:.0f} MB (PSS), {told.rss_mb or 0:.0f} MB (RSS)"
    )
    return told
