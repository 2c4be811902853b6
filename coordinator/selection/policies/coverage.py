"""``rounds.selection = "coverage"``: every class of every modality, then devices at random.

First a greedy cover of the cells modality x class that some eligible device has data for (of the modalities,
if devices learn without labels); then, at random, as many as the task asks for. It uses no history.
"""

from collections.abc import Collection, Sequence

from coordinator.selection.policies.base import NEEDED, Counts, Policy, Selection, SelectionInput, everyone
from runtime.text import first_few

Cell = tuple[str, int]
_RANDOM = "drawn at random"


def cells(counts: Counts) -> frozenset[Cell]:
    """The cells (modality, class index) that these counts cover."""
    return frozenset(
        (name, k) for name, per_class in counts.items() for k, n in enumerate(per_class) if n > 0
    )


def choose(draw: SelectionInput) -> Selection:
    """At most ``draw.wanted`` devices."""
    order, wanted, needed = draw.order(), draw.wanted, draw.needed
    if wanted is None or wanted >= len(order):
        return everyone(order, wanted)
    have = {device: cells(draw.candidates[device]) for device in order}
    open_cells = frozenset[Cell]().union(*have.values())
    why: dict[str, str] = {}
    while len(why) < wanted and open_cells:
        # max() keeps the first of equals: the shuffled order decides
        best = max(_open(order, why, wanted, needed), key=lambda d: len(have[d] & open_cells))
        gained = have[best] & open_cells
        words = first_few([_word(name, k, draw.labels) for name, k in sorted(gained)], 4)
        why[best] = f"covers {words}" if gained else NEEDED
        open_cells -= gained
    left = [device for device in order if device not in why]
    why |= dict.fromkeys(left[: max(0, wanted - len(why) - 1)], _RANDOM)
    if len(why) < wanted:
        why[_open(order, why, wanted, needed)[0]] = _RANDOM
    return Selection(tuple(sorted(why)), why)


def _open(order: list[str], chosen: Collection[str], wanted: int, needed: Collection[str]) -> list[str]:
    """Candidates for the next place; the last place is reserved for a needed device until one is selected."""
    left = [device for device in order if device not in chosen]
    if len(chosen) < wanted - 1 or any(device in needed for device in chosen):
        return left
    return [device for device in left if device in needed] or left


def _word(name: str, k: int, labels: Sequence[str]) -> str:
    if not labels:
        return name
    return f"{name} x {labels[k] if k < len(labels) else k}"


POLICY = Policy("coverage", choose)
