"""Invariants of a coordinator of several processes, looked at after every commit of its database."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from coordinator.lease.heartbeat import LEAD
from coordinator.storage import schema
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Outside, Violation
from lichen_lab.simulation.deterministic.scenario.invariants import GroundTruth

_UNFENCED: Final = frozenset({"leases", "writers", "table_version"})
"""Tables that a process may write that does not lead."""


@dataclass
class ClusterTruth:
    """What was committed so far.

    Args:
        truth: what devices did and were told.
        outside: the tables.
    """

    truth: GroundTruth
    outside: Outside
    epoch: int = 0
    """Of the leader's lease."""
    holder: str = ""
    versions: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """Version -> its manifest and its parent's."""

    def committed(self, tables: set[str], epoch: int | None) -> None:
        """Look at a commit.

        Args:
            tables: what it wrote.
            epoch: under which a leader wrote it; None: it was no leader's.

        Raises:
            Violation: see the messages.
        """
        if "leases" in tables:
            self._leased()
        if epoch is not None and epoch != self.epoch and (written := sorted(tables - _UNFENCED)):
            raise Violation(f"a leader of epoch {epoch} wrote {written} in epoch {self.epoch}")
        if "versions" in tables:
            self._versions()
        if "updates" in tables:
            self._updates()

    def _leased(self) -> None:
        rows = self.outside.rows(sa.select(schema.leases).where(schema.leases.c.role == LEAD))
        epoch, holder = (int(rows[0]["epoch"]), str(rows[0]["holder"])) if rows else (0, "")
        if epoch < self.epoch or (epoch == self.epoch and holder and self.holder not in {"", holder}):
            raise Violation(
                f"the lease is {holder}'s with epoch {epoch}; it was {self.holder}'s with {self.epoch}"
            )
        self.epoch, self.holder = epoch, holder

    def _versions(self) -> None:
        columns = schema.versions.c
        query = sa.select(columns.version, columns.manifest, columns.parent)
        found = {row["version"]: (row["manifest"], row["parent"]) for row in self.outside.rows(query)}
        for version, before in self.versions.items():
            if found.get(version) != before:
                raise Violation(f"version {version} was {before[0][:8]}, and is {found.get(version)} now")
        self.versions = found

    def _updates(self) -> None:
        columns = schema.updates.c
        query = sa.select(columns.round, columns.device, columns.digest).where(columns.lost == "")
        rows = self.outside.rows(query)
        counted = Counter((row["round"], row["device"]) for row in rows)
        for (round_, device), count in counted.items():
            if count > 1:
                raise Violation(f"{device} is counted {count} times in round {round_}")
        there = {row["digest"] for row in rows}
        for digest, (device, round_) in self.truth.accepted.items():
            if digest not in there and not self.truth.tolerant:
                raise Violation(
                    f"{device}'s accepted update {digest[:8]} for round {round_} is no row any more"
                )
