"""``rounds.selection = "bandit"``: devices with a large loss, and with seldom seen parts of the model.

The discounted upper confidence bound of Chen and Zhang (AAAI 2024, appendix, "Client Sampling for Balanced
Load of Experts"): of device i before a round, over the rounds r that are over, the newest being t,

    A_i = L_i / I_i + explore * sqrt(sum_r g^(t-r) / (I_i + sum_k P_k)),    g = discount,

with the sums, discounted alike, L_i of its losses, I_i of the rounds that selected it, and P_k of the rounds
in which any update moved expert k; k runs over the experts of its route, which the method names (DisentAFL's
are the paper's (m, o, d); by default each blob is one). The largest are chosen. Where the paper is silent:

- A device that was never selected comes before all others (its bound is taken as infinite), then the seed.
- L_i is divided by the rounds in which it told a loss. A device that was selected and delivered nothing has
  the fleet's median: it is no better known than the others, and must not be passed over for ever. No mean:
  one device that lies about its loss would put all who deliver nothing before those who do.
- Whom an earlier attempt of the same round asked in vain comes last: the next attempt would fail as it did.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Final

from coordinator.selection.policies.base import (
    NEEDED,
    Experts,
    PastRound,
    Policy,
    Selection,
    SelectionInput,
    everyone,
)
from protocol.tasks.rounds import Rounds

_NEGLIGIBLE: Final = 1e-3
"""A round with a smaller weight is ignored."""
_MOST_ROUNDS: Final = 1000
_MAX_EXPLAINED: Final = 16
"""The number of devices not selected that are explained."""


@dataclass
class Sums:
    """Discounted sums over the rounds before.

    Attributes:
        rounds: the weights of all rounds.
        seen: device -> I_i.
        loss: device -> L_i.
        told: device -> the weights of the rounds in which it reported a loss.
        sampled: expert -> P_k.
    """

    rounds: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    sampled: dict[str, float] = field(default_factory=dict)

    def mean_loss(self, device: str) -> float | None:
        """L_i / I_i; None if it reported no loss."""
        told = self.told.get(device, 0.0)
        return self.loss[device] / told if told else None


@dataclass(frozen=True, slots=True)
class Arm:
    """One device's arm; ``words``: for people."""

    device: str
    score: float
    words: str


def sums(history: Sequence[PastRound], discount: float, experts: Experts = frozenset) -> Sums:
    """Add up rounds; the newest weighs 1. ``experts``: as in :class:`SelectionInput`."""
    found = Sums()
    among = cache(experts)  # many devices move the same blobs
    newest = max((past.round for past in history), default=0)
    for past in history:
        weight = discount ** (newest - past.round)
        found.rounds += weight
        _add(found.seen, past.selected, weight)
        _add(found.told, past.losses, weight)
        for device, loss in past.losses.items():
            found.loss[device] = found.loss.get(device, 0.0) + weight * loss
        _add(found.sampled, frozenset[str]().union(*map(among, set(map(tuple, past.moved.values())))), weight)
    return found


def _add(to: dict[str, float], names: Iterable[str], weight: float) -> None:
    for name in names:
        to[name] = to.get(name, 0.0) + weight


def arm(device: str, route: Collection[str], found: Sums, unknown_loss: float, explore: float) -> Arm:
    """One device's bound.

    Args:
        device: its name.
        route: the experts of the blobs that it may need.
        found: sums over the rounds before.
        unknown_loss: for a device that reported none.
        explore: weight of the second term.
    """
    seen = found.seen.get(device, 0.0)
    experts = math.fsum(found.sampled.get(name, 0.0) for name in set(route))
    if not seen:
        return Arm(device, math.inf, words=f"never selected, experts {experts:.1f}")
    mean = found.mean_loss(device)
    loss = unknown_loss if mean is None else mean
    score = loss + explore * math.sqrt(found.rounds / (seen + experts))
    told = f"loss {loss:.2f}" if mean is not None else f"loss unknown ({loss:.2f} assumed)"
    words = f"{told}, seen {seen:.1f} of {found.rounds:.1f} rounds, experts {experts:.1f}"
    return Arm(device, score, words)


def rank(draw: SelectionInput) -> list[Arm]:
    """All candidates, the best first."""
    options = draw.rounds.bandit
    among = cache(draw.experts)
    found = sums(draw.history, options.discount, draw.experts)
    known = [loss for device in sorted(found.told) if (loss := found.mean_loss(device)) is not None]
    unknown = statistics.median(known) if known else 0.0
    arms = [
        arm(device, among(tuple(draw.routes.get(device, ()))), found, unknown, options.explore)
        for device in draw.order()
    ]
    return sorted(
        arms, key=lambda a: (a.device in draw.tried, -a.score)
    )  # stable: the seed decides between equals


def choose(draw: SelectionInput) -> Selection:
    """The ``draw.wanted`` devices with the largest bounds."""
    if draw.wanted is None or draw.wanted >= len(draw.candidates):
        return everyone(draw.order(), draw.wanted)
    ranked = rank(draw)
    chosen, rest = ranked[: draw.wanted], ranked[draw.wanted :]
    why = {one.device: _said(one, draw) for one in chosen}
    if chosen and not any(one.device in draw.needed for one in chosen):
        stand_in = next((one for one in rest if one.device in draw.needed), None)
        if stand_in is not None:
            last = chosen[-1]
            del why[last.device]
            why[stand_in.device] = f"{_said(stand_in, draw)}; {NEEDED}"
            rest = [last, *(one for one in rest if one is not stand_in)]
    passed = {one.device: _said(one, draw) for one in islice(rest, _MAX_EXPLAINED)}
    return Selection(tuple(sorted(why)), why, passed)


def _said(one: Arm, draw: SelectionInput) -> str:
    asked = " (asked in vain in this round)" if one.device in draw.tried else ""
    return f"{one.words}{asked}"


def _looks_back(rounds: Rounds) -> int:
    """Rounds until the discount makes one negligible."""
    discount = rounds.bandit.discount
    if discount >= 1:
        return _MOST_ROUNDS
    return min(_MOST_ROUNDS, math.ceil(math.log(_NEGLIGIBLE) / math.log(discount)))


POLICY = Policy("bandit", choose, _looks_back)
