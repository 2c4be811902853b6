"""The audit log: its newest rows, read further as it grows, and the check of its chain."""

from collections.abc import Sequence
from dataclasses import dataclass

from console.words import digest
from coordinator.audit.chain import AuditEntry, ChainCheck
from coordinator.audit.log import MAX_LISTED, read_log, verify_log
from coordinator.storage.location import Location

MOST_CHECKED = 100_000
"""Rows that are checked; ``lichen audit verify`` checks all."""


class AuditRows:
    """The newest ``MAX_LISTED`` rows; :meth:`read` in one thread at a time.

    Args:
        location: of the tables.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._rows: list[AuditEntry] = []

    def read(self) -> tuple[Sequence[AuditEntry], str]:
        """The rows, the newest first, and a text that changes with them; raises as :func:`read_log`."""
        known = self._rows[-1] if self._rows else None
        after = 0 if known is None else known.seq - 1  # with the last known one, which must still be the same
        found = read_log(self._location, after=after)
        if known is not None and (not found or found[0] != known):
            self._rows, found = [], read_log(self._location)
        if known is None or len(found) != 1 or not self._rows:
            self._rows = [*self._rows[:-1], *found][-MAX_LISTED:]
        newest = self._rows[-1] if self._rows else None
        return tuple(reversed(self._rows)), digest(newest, len(self._rows))


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """What the check found; ``whole``: False: it ended after ``MOST_CHECKED`` rows."""

    found: ChainCheck
    whole: bool


def check(location: Location) -> tuple[AuditCheck, str]:
    """Check the chain, and a text that changes with the result; raises as :func:`verify_log`."""
    found = verify_log(location, most=MOST_CHECKED)
    whole = found.row is not None or found.head is None or found.head.seq < MOST_CHECKED
    return AuditCheck(found, whole), digest(found, whole)
