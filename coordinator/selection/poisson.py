"""Poisson sampling (``privacy.sampling``): each device takes part by chance, whatever the others do.

A device takes part if its place (``protocol.cohort``) is below a fixed threshold. No limit, no stand-in and
no preference: they would make one device's part depend on another's, and the account counts on that it does
not. For the same reason the sample is of the devices that are there when the round opens, by name: if others
joined it until it closes, how long it waits for one device would decide about them.
"""

from functools import partial
from typing import Final

from coordinator.selection.policies import Policy, Selection, SelectionInput, policy
from protocol.cohort import PLACE_BITS, place, salt_of
from protocol.tasks.task import Task

_RANDOM: Final = "drawn by itself, with probability privacy.rate"


def policy_of(task: Task) -> Policy:
    """The policy of a task: Poisson sampling, or what ``rounds.selection`` names.

    Raises:
        Misconfigured: it names none.
    """
    rate = None if task.privacy is None else task.privacy.rate
    if rate is None:
        return policy(task.rounds.selection)
    return Policy("poisson", partial(choose, rate), by_name=True)


def choose(rate: float, draw: SelectionInput) -> Selection:
    """The candidates with a place below ``rate``; there may be none."""
    salt, below = draw.salt or salt_of(draw.seed), max(1, int(rate * 2**PLACE_BITS))
    chosen = sorted(device for device in draw.candidates if place(salt, device) < below)
    return Selection(tuple(chosen), dict.fromkeys(chosen, _RANDOM))
