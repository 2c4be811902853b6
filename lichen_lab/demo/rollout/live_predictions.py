"""The canary's live predictions with its final version, over one whole turn of its recording."""

from typing import Any, Final

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.observer import describe, initial_results, listen, parse
from lichen_lab.demo.core.results import ObserverResults
from lichen_lab.demo.rollout import devices
from lichen_lab.demo.rollout.monitor import last_turn
from lichen_lab.demo.rollout.steps import RolloutAct

_SLACK_S: Final = 30.0


async def observe_canary(fleet: DemoFleet[Any], act: RolloutAct, version: int) -> ObserverResults:
    """Wait for it.

    Raises:
        Transient: there is no such turn in time.
    """
    name = devices.CANARY.name
    results = await initial_results(ObserverResults, fleet, name, devices.CANARY.person)
    results.version = version
    period = fleet.stage.lengths_s[name] + devices.GAP_S

    def over() -> bool:
        rows = last_turn(act.rows(name), version, period)
        results.predictions = parse(rows or ())
        return rows is not None

    what = f"one turn of {name}'s recording ({period:.0f} s of it)"
    bound_s = period / devices.SPEED + _SLACK_S
    await listen(fleet, act.children[name], results, what=what, over=over, bound_s=bound_s)
    fleet.screen.say(describe(results))
    return results
