"""The rounds before, from the database, for policies that look back: a restart forgets none."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from coordinator.selection.policies.base import PastRound
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import names_in

_MAX_LOSS: Final = 1e9
"""A larger number is not a loss: sums of it could overflow."""


@dataclass
class _Round:
    selected: set[str] = field(default_factory=set)
    losses: dict[str, float] = field(default_factory=dict)
    moved: dict[str, Sequence[str]] = field(default_factory=dict)


class SelectionHistory:
    """Collects selections and folded updates by round."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Round] = defaultdict(_Round)

    def select(self, round_: int, devices: Iterable[str]) -> None:
        """Add devices that an attempt of the round selected."""
        self._rounds[round_].selected.update(devices)

    def accept(self, round_: int, device: str, loss: Any, moved: Sequence[str]) -> None:
        """Add a folded update.

        Args:
            round_: its round.
            device: its sender.
            loss: its ``metrics["loss"]``; anything but a usable number counts as none.
            moved: names of the blobs that it changed.
        """
        record = self._rounds[round_]
        record.selected.add(device)
        record.moved[device] = moved
        if isinstance(loss, (int, float)) and abs(loss) <= _MAX_LOSS:
            record.losses[device] = float(loss)

    def past(self) -> tuple[PastRound, ...]:
        """The rounds in order."""
        return tuple(
            PastRound(round_, frozenset(record.selected), record.losses, record.moved)
            for round_, record in sorted(self._rounds.items())
        )


def read(store: Database, before: int, rounds: int) -> tuple[PastRound, ...]:
    """The last rounds before one, in order; fewer if the database holds no more (``keep_updates``).

    Args:
        store: the coordinator's.
        before: the round that is to be opened.
        rounds: how many to look back.
    """
    if rounds <= 0:
        return ()
    history = SelectionHistory()
    attempts, updates = schema.attempts, schema.updates
    asked = sa.select(attempts.c.round, attempts.c.selected).where(
        attempts.c.round < before, attempts.c.round >= before - rounds
    )
    for row in store.rows(asked):
        history.select(row["round"], names_in(row["selected"]))
    # The engine extracts the one number from the header: parsing 100,000 headers here would take seconds.
    loss = updates.c.header["metrics", "loss"].label("loss")
    folded = (
        sa.select(updates.c.round, updates.c.device, loss, updates.c.blobs)
        .where(updates.c.round < before, updates.c.round >= before - rounds, updates.c.lost == "")
        .order_by(updates.c.round, updates.c.device)
    )
    for row in store.rows(folded):
        history.accept(row["round"], row["device"], row["loss"], _names(row["blobs"]))
    return history.past()


def _names(value: Any) -> tuple[str, ...]:
    """A stored list of names; empty if it is damaged."""
    return tuple(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else ()
