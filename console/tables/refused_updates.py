"""Refused updates, from the round machine's journal: which device, which round, why, and when."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import unpacked
from runtime.text import one_line

MOST: Final = 1000
_KINDS: Final = ("update_refused", "updates_lost")
_LOST: Final = "unusable when the round was closed"


@dataclass(frozen=True, slots=True)
class RefusedUpdate:
    """``wall``: Unix seconds by the coordinator's clock."""

    wall: float
    device: str
    round: int
    reason: str


class RefusedUpdates:
    """The newest ones; :meth:`read` in one thread at a time. The coordinator trims its journal."""

    def __init__(self) -> None:
        self._last = 0
        self._found: deque[RefusedUpdate] = deque(maxlen=MOST)
        self.newest: tuple[RefusedUpdate, ...] = ()

    def read(self, store: Database) -> None:
        """Read the entries that are new."""
        table = schema.events
        last = store.rows(sa.select(sa.func.max(table.c.seq).label("last")))[0]["last"] or 0
        if last < self._last:  # other tables than before
            self._last = 0
            self._found.clear()
        if last == self._last:
            self.newest = tuple(reversed(self._found))
            return
        query = (
            sa.select(table.c.now, table.c.event)
            .where(table.c.seq > self._last, table.c.event["type"].as_string().in_(_KINDS))
            .order_by(table.c.seq.desc())
            .limit(MOST)
        )
        shift_s = _shift(store)
        for row in reversed(store.rows(query)):
            self._found.extend(_refused(row["event"], row["now"] + shift_s))
        self._last = last
        self.newest = tuple(reversed(self._found))


def _shift(store: Database) -> float:
    """From the line that the rounds' times are on to the clock, seconds."""
    wall, line = store.get_meta("why_wall"), store.get_meta("rounds_now")
    return 0.0 if wall is None or line is None else float(wall) - float(line)


def _refused(event: Any, wall: float) -> list[RefusedUpdate]:
    try:
        event = unpacked(event)
    except ValueError:
        return []
    number = int(event["round"])
    if event["type"] == "update_refused":
        return [RefusedUpdate(wall, str(event["device"]), number, one_line(str(event["reason"]), 60))]
    why = {str(device): str(reason) for device, reason in event.get("refused", ())}
    why |= dict.fromkeys(map(str, event.get("outliers", ())), "outlier")
    return [
        RefusedUpdate(wall, str(device), number, one_line(why.get(str(device), _LOST), 60))
        for device in event["devices"]
    ]
