"""What a selection policy is asked, and what it answers. Pure."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.tasks.task import Rounds

Counts = Mapping[str, Sequence[int]]
"""Per modality, windows per class; one number where devices learn without labels."""
EVERYONE: Final = "every able device takes part"
NEEDED: Final = "a round needs a device that trains"


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round that is over, as the database knows it.

    Attributes:
        round: its number.
        selected: devices that were selected in any of its attempts.
        losses: of those whose update counted and told one: device -> ``metrics["loss"]``, finite.
        moved: device -> names of the blobs that its counted update moved.
    """

    round: int
    selected: frozenset[str]
    losses: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionInput:
    """All that a choice may depend on; the same draw gives the same choice.

    Attributes:
        candidates: able devices, and what they have data for.
        wanted: how many are to be chosen; None takes all.
        seed: decides where devices are equals.
        labels: names of the classes, for the words; none where the candidates count windows without labels.
        needed: at least one of these takes part, where one is a candidate.
        rounds: the policy's options are there.
        routes: device -> names of the blobs that it may need.
        history: rounds that are over, in order; as many as the policy looks back, or as there are.
        tried: devices that an earlier attempt of this round asked in vain.
    """

    candidates: Mapping[str, Counts]
    wanted: int | None
    seed: int
    labels: Sequence[str] = ()
    needed: Collection[str] = ()
    rounds: Rounds = field(default_factory=Rounds)
    routes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    history: Sequence[PastRound] = ()
    tried: Collection[str] = ()

    def order(self) -> list[str]:
        """The candidates as the seed orders them."""
        order = sorted(self.candidates)
        random.Random(self.seed).shuffle(order)  # noqa: S311 - fairness among devices, nothing secret
        return order


@dataclass(frozen=True)
class Selection:
    """Who takes part, and per device one sentence why.

    Attributes:
        devices: sorted.
        why: of each of them.
        passed: of those that came next, why not; may name some of them, or none.
    """

    devices: tuple[str, ...]
    why: dict[str, str]
    passed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """A way to choose, found by its module's name.

    Attributes:
        name: of the module; what ``rounds.selection`` says.
        choose: pure.
        looks_back: how many rounds of history it uses under a task's options; 0: none is read for it.
    """

    name: str
    choose: Callable[[SelectionInput], Selection]
    looks_back: Callable[[Rounds], int] = lambda _rounds: 0


def everyone(order: Sequence[str]) -> Selection:
    """Where there are no more candidates than are wanted."""
    return Selection(tuple(sorted(order)), dict.fromkeys(order, EVERYONE))
