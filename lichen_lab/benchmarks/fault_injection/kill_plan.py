"""The processes that a seed kills, and when: drawn before the run, so that a seed names one plan."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.topics import Kind

_FIRST_S: Final = 1.2
"""Latest moment of a strike after its round was first seen: about the length of a round."""
_SOON_S: Final = 0.04
"""Latest moment after a message was seen: its effect is then being written or answered."""
_ON: Final = (Kind.OFFER, Kind.FETCH, Kind.UPDATE, Kind.RECEIPT, Kind.ROUND)
_AIMED: Final = 0.5
"""Share of strikes that wait for such a message."""
_AWAY_S: Final = (0.05, 0.8)
_SECOND: Final = 0.3
"""Share of rounds with a second strike."""
_ALL: Final = 0.06
"""Share of strikes that kill every process at once, like a power cut."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL for some processes.

    Attributes:
        round: the plan waits until this round is first seen.
        on: then for the next message of this kind, if any, for a limited time.
        after_s: time from then on.
        victims: killed at one moment.
        away_s: until they are started again.
    """

    round: int
    on: Kind | None
    after_s: float
    victims: tuple[str, ...]
    away_s: float

    def words(self) -> str:
        """A line of text."""
        moment = f"round {self.round}" + ("" if self.on is None else f", {self.on.value}")
        return f"{moment} + {self.after_s:.2f} s: {', '.join(self.victims)} for {self.away_s:.2f} s"


def plan(seed: int, rounds: int, victims: Sequence[str]) -> list[Kill]:
    """One or two strikes in every round; each process is a victim once before any is twice."""
    rng = random.Random(f"strikes/{seed}")  # noqa: S311 - a plan that a seed names
    bag: list[str] = []
    strikes = []
    for number in range(1, rounds + 1):
        for _ in range(1 + (rng.random() < _SECOND)):
            if rng.random() < _ALL:
                chosen = tuple(victims)
            else:
                if not bag:
                    bag = rng.sample(list(victims), len(victims))
                chosen = (bag.pop(),)
            on = rng.choice(_ON) if rng.random() < _AIMED else None
            after_s = rng.uniform(0, _FIRST_S if on is None else _SOON_S)
            strikes.append(Kill(number, on, after_s, chosen, rng.uniform(*_AWAY_S)))
    return strikes
