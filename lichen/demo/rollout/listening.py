"""The canary's live predictions with the version that stayed, over one whole turn of its recording."""

import asyncio
import json
from typing import Any, Final

from lichen.demo import observer
from lichen.demo.fleet import Fleet
from lichen.demo.prepare import Stage
from lichen.demo.rollout import cast
from lichen.demo.rollout.act import Act
from lichen.demo.rollout.watching import turn
from lichen.demo.story import ObserverStory

_SLACK_S: Final = 30.0
_LOOK_S: Final = 0.5


async def listen(fleet: Fleet[Stage], act: Act, version: int) -> ObserverStory:
    """Wait for it.

    Raises:
        Transient: there is no such turn in time.
    """
    place, screen, name = fleet.place, fleet.screen, cast.CANARY.name
    told = ObserverStory(
        name,
        cast.CANARY.person,
        str(place.python),
        torch_free=await asyncio.to_thread(place.torch_free),
        how=place.how,
        version=version,
        fault=fleet.stage.fault,
    )
    period = fleet.stage.lengths_s[name] + cast.GAP_S
    sampled: list[tuple[float, float]] = []
    found: list[dict[str, Any]] = []

    async def over() -> bool:
        await asyncio.sleep(_LOOK_S)
        child = act.children[name]
        if child.pid is not None:
            sampled.append(observer.memory_mb(child.pid))
        rows = turn(act.rows(name), version, period)
        found[:] = rows or []
        return rows is not None

    bound = period / cast.SPEED + _SLACK_S
    await fleet.wait(f"one turn of {name}'s recording ({period:.0f} s of it)", over, bound)
    told.predictions = observer.parse(f"{json.dumps(row)}\n" for row in found)
    if sampled:
        # The median: a short-lived helper process does not count as the agent's size.
        told.memory_mb, told.rss_mb = sorted(sampled)[len(sampled) // 2]
    whole, failing = told.accuracy() or 0.0, told.accuracy(failing=True) or 0.0
    screen.say(
        f"{name}, live on person {cast.CANARY.person}: {100 * whole:.0f} % of {len(told.predictions)} "
        f"windows right; {100 * failing:.0f} % while its gyroscope was silent; "
        f"memory {told.memory_mb or 0:.0f} MB (PSS), {told.rss_mb or 0:.0f} MB (RSS)"
    )
    return told
