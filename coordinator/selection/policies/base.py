"""Input and output of a selection policy. Pure."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.cohort import MAX_MEMBERS, PLACE_BITS
from protocol.tasks.rounds import Rounds

Counts = Mapping[str, Sequence[int]]
"""Per modality, windows per class; one number where devices learn without labels."""
Experts = Callable[[Sequence[str]], frozenset[str]]
"""Names of blobs -> the experts among them (``MethodSpec.experts``)."""
EVERYONE: Final = "every eligible device takes part"
NEEDED: Final = "a round needs a device that trains"


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round before, from the database.

    Attributes:
        round: its number.
        selected: devices that were selected in any of its attempts.
        losses: of those whose counted update reported one: device -> ``metrics["loss"]``, finite.
        moved: device -> names of the blobs that its counted update changed.
    """

    round: int
    selected: frozenset[str]
    losses: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelectionInput:
    """Everything that a selection may depend on; the same input gives the same selection.

    Attributes:
        candidates: eligible devices, and what they have data for.
        wanted: how many to select; None selects all.
        seed: decides between equals.
        labels: names of the classes, for the text; empty if the candidates count windows without labels.
        needed: at least one of these is selected, if one is a candidate.
        rounds: the policy's options are there.
        routes: device -> names of the blobs that it may need.
        history: the rounds before, in order; as many as the policy looks back, or as there are.
        tried: devices that did not deliver in an earlier attempt of this round.
        experts: names of blobs -> the experts among them (``MethodSpec.experts``).
        salt: of the round, for places (``protocol.cohort``); empty: made from the seed.
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
    salt: str = ""
    experts: Experts = frozenset

    def order(self) -> list[str]:
        """The candidates in the seed's order."""
        order = sorted(self.candidates)
        random.Random(self.seed).shuffle(order)  # noqa: S311 - fairness among devices, not a secret
        return order


@dataclass(frozen=True)
class Selection:
    """The selected devices, and one sentence why for each.

    Attributes:
        devices: sorted.
        why: of each of them.
        passed: of the next candidates, why they were not selected; may name some of them, or none.
        below: the selected are those of the candidates with a place below this, and other devices with such a
            place are asked as well, whenever they come; None: those that are named, and no others.
    """

    devices: tuple[str, ...]
    why: dict[str, str]
    passed: dict[str, str] = field(default_factory=dict)
    below: int | None = None


@dataclass(frozen=True)
class Policy:
    """A selection policy, found by its module's name.

    Attributes:
        name: of the module; the value of ``rounds.selection``.
        choose: pure.
        looks_back: how many rounds of history it uses under a task's options; 0: none is read for it.
        by_name: whether it may select devices by name, which an offer has room for ``MAX_MEMBERS`` of.
    """

    name: str
    choose: Callable[[SelectionInput], Selection]
    looks_back: Callable[[Rounds], int] = lambda _rounds: 0
    by_name: bool = True


def everyone(order: Sequence[str], wanted: int | None) -> Selection:
    """The selection if there are no more candidates than wanted.

    Without a limit, devices that are away are asked as well.
    """
    open_to_all = wanted is None or len(order) > MAX_MEMBERS
    below = 2**PLACE_BITS if open_to_all else None
    return Selection(tuple(sorted(order)), dict.fromkeys(order, EVERYONE), below=below)
