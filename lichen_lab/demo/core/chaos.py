"""``--chaos``: kill one agent and the coordinator in mid-round, and start them again."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lichen_lab.simulation.processes.process import Child
from lichen_lab.simulation.processes.testbed import COORDINATOR, Testbed
from runtime.fleet_view import FleetView

_AWAY_S: Final = 3.0
_FROM_ROUND: Final = 3
"""Not in the first rounds, while processes still start."""


@dataclass(frozen=True)
class Strike:
    """What was killed, and when.

    Attributes:
        device: the agent that was killed together with the coordinator.
        round: the round that was open.
        pids: name -> the process id that was killed.
    """

    device: str
    round: int
    pids: dict[str, int | None]

    def returned(self, children: Iterable[Child]) -> tuple[str, ...]:
        """The killed processes that run again, with a new process id."""
        return tuple(
            sorted(c.name for c in children if c.name in self.pids and c.pid not in (None, self.pids[c.name]))
        )


def moment(view: FleetView, rounds: int) -> str | None:
    """The device to kill, if the round is open, one device has delivered and another has not; else None."""
    now = view.round
    if now is None or now.phase != "collecting" or now.round < min(_FROM_ROUND, rounds):
        return None
    late = sorted(set(now.selected) - view.delivered())
    return late[0] if len(late) < len(now.selected) and late else None


async def strike(bed: Testbed, view: FleetView, changed: asyncio.Event) -> Strike:
    """Wait for the moment, kill both, and start them again."""
    rounds = view.round.rounds if view.round else 1
    while (victim := moment(view, rounds)) is None:
        await changed.wait()
        # The screen waits for the same event, and clears it.
        await asyncio.sleep(0)
        rounds = view.round.rounds if view.round else rounds
    accepted = ", ".join(sorted(view.delivered()))
    number = view.round.round if view.round else 0
    both = (COORDINATOR, victim)
    done = Strike(victim, number, {name: bed.children[name].pid for name in both})
    await asyncio.gather(*map(bed.kill, both))
    bed.say(
        f"chaos: SIGKILL for the coordinator and for {victim} in round {number}, "
        f"with updates of {accepted} already accepted"
    )
    await asyncio.sleep(_AWAY_S)
    for name in both:
        await bed.start(name)
    bed.say(f"chaos: the coordinator and {victim} are started again")
    return done
