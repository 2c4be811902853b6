"""The canary's live predictions with the version that stayed, over one whole turn of its recording."""

from typing import Any, Final

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.observer import in_words, listen, parse, story_of
from lichen_lab.demo.core.results import ObserverStory
from lichen_lab.demo.rollout import devices
from lichen_lab.demo.rollout.monitor import turn
from lichen_lab.demo.rollout.steps import Act

_SLACK_S: Final = 30.0


async def hear(fleet: DemoFleet[Any], act: Act, version: int) -> ObserverStory:
    """Wait for it.

    Raises:
        Transient: there is no such turn in time.
    """
    name = devices.CANARY.name
    told = await story_of(ObserverStory, fleet, name, devices.CANARY.person)
    told.version = version
    period = fleet.stage.lengths_s[name] + devices.GAP_S

    def over() -> bool:
        rows = turn(act.rows(name), version, period)
        told.predictions = parse(rows or ())
        return rows is not None

    what = f"one turn of {name}'s recording ({period:.0f} s of it)"
    bound_s = period / devices.SPEED + _SLACK_S
    await listen(fleet, act.children[name], told, what=what, over=over, bound_s=bound_s)
    fleet.screen.say(in_words(told))
    return told
