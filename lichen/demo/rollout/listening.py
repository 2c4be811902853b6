"""The canary's live predictions with the version that stayed, over one whole turn of its recording."""

from typing import Any, Final

from lichen.demo.fleet import Fleet
from lichen.demo.observing import in_words, listen, parse, story_of
from lichen.demo.rollout import cast
from lichen.demo.rollout.act import Act
from lichen.demo.rollout.watching import turn
from lichen.demo.story import ObserverStory

_SLACK_S: Final = 30.0


async def hear(fleet: Fleet[Any], act: Act, version: int) -> ObserverStory:
    """Wait for it.

    Raises:
        Transient: there is no such turn in time.
    """
    name = cast.CANARY.name
    told = await story_of(ObserverStory, fleet, name, cast.CANARY.person)
    told.version = version
    period = fleet.stage.lengths_s[name] + cast.GAP_S

    def over() -> bool:
        rows = turn(act.rows(name), version, period)
        told.predictions = parse(rows or ())
        return rows is not None

    what = f"one turn of {name}'s recording ({period:.0f} s of it)"
    bound_s = period / cast.SPEED + _SLACK_S
    await listen(fleet, act.children[name], told, what=what, over=over, bound_s=bound_s)
    fleet.screen.say(in_words(told))
    return told
