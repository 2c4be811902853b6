"""Which devices take part in a round: pure and seeded.

First a greedy cover of the cells modality x class that some able device has data for; then, at random, as
many as the task asks for. Every choice is explained in words.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Counts = Mapping[str, Sequence[int]]
"""Per modality, windows per class."""
Cell = tuple[str, int]


@dataclass(frozen=True)
class Selection:
    """Who takes part, and per device one sentence why."""

    devices: tuple[str, ...]
    why: dict[str, str]


def cells(counts: Counts) -> frozenset[Cell]:
    """The cells (modality, class index) that these counts cover."""
    return frozenset(
        (name, k) for name, per_class in counts.items() for k, n in enumerate(per_class) if n > 0
    )


def select(
    candidates: Mapping[str, Counts],
    wanted: int | None,
    seed: int,
    labels: Sequence[str] = (),
    needed: Collection[str] = (),
) -> Selection:
    """Choose devices.

    Args:
        candidates: able devices and what they have.
        wanted: how many; None takes all.
        seed: the same seed and candidates give the same choice.
        labels: names of the classes, for the words.
        needed: at least one of these takes part, where one is a candidate.

    Returns:
        At most ``wanted`` devices, sorted.
    """
    order = sorted(candidates)
    random.Random(seed).shuffle(order)  # noqa: S311 - fairness among devices, nothing secret
    if wanted is None or wanted >= len(order):
        return Selection(tuple(sorted(order)), dict.fromkeys(order, "every able device takes part"))
    have = {device: cells(candidates[device]) for device in order}
    open_cells = frozenset[Cell]().union(*have.values())
    why: dict[str, str] = {}
    while len(why) < wanted and open_cells:
        # max() keeps the first of equals: the shuffled order decides
        best = max(_open(order, why, wanted, needed), key=lambda d: len(have[d] & open_cells))
        gained = have[best] & open_cells
        why[best] = f"covers {_words(gained, labels)}" if gained else "a round needs a device that trains"
        open_cells -= gained
    left = [device for device in order if device not in why]
    why |= dict.fromkeys(left[: max(0, wanted - len(why) - 1)], "drawn at random")
    if len(why) < wanted:
        why[_open(order, why, wanted, needed)[0]] = "drawn at random"
    return Selection(tuple(sorted(why)), why)


def _open(order: list[str], chosen: Collection[str], wanted: int, needed: Collection[str]) -> list[str]:
    """Who may take the next place; the last one is kept for a device that is needed, until one is in."""
    left = [device for device in order if device not in chosen]
    if len(chosen) < wanted - 1 or any(device in needed for device in chosen):
        return left
    return [device for device in left if device in needed] or left


def _words(gained: frozenset[Cell], labels: Sequence[str]) -> str:
    names = [f"{name} x {labels[k] if k < len(labels) else k}" for name, k in sorted(gained)]
    rest = len(names) - 4
    return ", ".join(names[:4]) + (f" and {rest} more" if rest > 0 else "")
