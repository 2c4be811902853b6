"""The rounds that are over, from the database, for a policy that looks back: a restart forgets none."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from coordinator.selection.policies.base import PastRound
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import names_in

_MOST_LOSS: Final = 1e9
"""A number beyond that is no loss: sums of it could overflow."""


@dataclass
class _Round:
    selected: set[str] = field(default_factory=set)
    losses: dict[str, float] = field(default_factory=dict)
    moved: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(store: Database, before: int, rounds: int) -> tuple[PastRound, ...]:
    """The last rounds before one, in order; fewer where the database knows no more (``keep_updates``).

    Args:
        store: the coordinator's.
        before: the round that is to be opened.
        rounds: how many to look back.
    """
    if rounds <= 0:
        return ()
    found: dict[int, _Round] = {}
    attempts, updates = schema.attempts, schema.updates
    asked = sa.select(attempts.c.round, attempts.c.selected).where(
        attempts.c.round < before, attempts.c.round >= before - rounds
    )
    for row in store.rows(asked):
        found.setdefault(row["round"], _Round()).selected.update(names_in(row["selected"]))
    # SQLite takes the one number out of the header: to parse 100,000 headers here would take seconds.
    loss = sa.func.json_extract(updates.c.header, "$.metrics.loss").label("loss")
    told = (
        sa.select(updates.c.round, updates.c.device, loss, updates.c.blobs)
        .where(updates.c.round < before, updates.c.round >= before - rounds, updates.c.lost == "")
        .order_by(updates.c.round, updates.c.device)
    )
    for row in store.rows(told):
        one = found.setdefault(row["round"], _Round())
        one.selected.add(row["device"])
        if isinstance(row["loss"], (int, float)) and abs(row["loss"]) <= _MOST_LOSS:
            one.losses[row["device"]] = float(row["loss"])
        one.moved[row["device"]] = _names(row["blobs"])
    return tuple(
        PastRound(number, frozenset(one.selected), one.losses, one.moved)
        for number, one in sorted(found.items())
    )


def _names(value: Any) -> tuple[str, ...]:
    """A list of names as it was written; a rotten one is empty."""
    return tuple(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else ()
