"""The journal of accepted updates: a frame synced to disk, then a row in one transaction with its event.

Promise 1 rests here: a ``Receipt`` goes out only after that transaction is on disk.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from coordinator import schema
from coordinator.store import Store
from protocol.updates import UpdateHeader
from runtime.files import write_atomic


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted update: who, which bytes, and where they lie."""

    device: str
    digest: str
    path: Path


class Journal:
    """Accepted updates under ``root`` (one folder a round), their headers in the database. Thread-safe."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root

    def path(self, round_: int, digest: str) -> Path:
        """Where a frame lies."""
        return self._root / str(round_) / digest

    def write(self, round_: int, digest: str, payload: bytes) -> None:
        """Put a frame on disk. Without a row it counts for nothing, and goes with its round's folder."""
        write_atomic(self.path(round_, digest), payload)

    def record(self, header: UpdateHeader, digest: str, size: int, wall: float) -> None:
        """Write the update's row; the driver calls it in the transaction of the machine's event."""
        self._store.put(
            schema.updates,
            round=header.round,
            device=header.device,
            digest=digest,
            size=size,
            wall=wall,
            header=header.model_dump(mode="json", exclude={"extra"}),
            lost="",
        )

    def find(self, device: str, digest: str) -> int | None:
        """The round in which exactly this update was accepted."""
        table = schema.updates
        query = sa.select(table.c.round).where(
            table.c.digest == digest, table.c.device == device, table.c.lost == ""
        )
        found = self._store.rows(query)
        return int(found[0]["round"]) if found else None

    def digest_of(self, round_: int, device: str) -> str | None:
        """What that device delivered in that round."""
        table = schema.updates
        query = sa.select(table.c.digest).where(
            table.c.round == round_, table.c.device == device, table.c.lost == ""
        )
        found = self._store.rows(query)
        return str(found[0]["digest"]) if found else None

    def entries(self, round_: int, devices: Iterable[str]) -> list[Entry]:
        """The updates of these devices, in the order of their names."""
        table = schema.updates
        query = (
            sa.select(table.c.device, table.c.digest).where(table.c.round == round_).order_by(table.c.device)
        )
        wanted = set(devices)
        return [
            Entry(row["device"], row["digest"], self.path(round_, row["digest"]))
            for row in self._store.rows(query)
            if row["device"] in wanted
        ]

    def mark_lost(self, round_: int, device: str, why: str) -> None:
        """An accepted update turned out unusable; the device may deliver again."""
        table = schema.updates
        with self._store.transaction() as connection:
            where = (table.c.round == round_) & (table.c.device == device)
            connection.execute(table.update().where(where).values(lost=why[:500]))

    def forget_before(self, round_: int) -> None:
        """Remove the frames of rounds that are folded; their headers stay for the history."""
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if folder.name.isdecimal() and int(folder.name) < round_:
                    shutil.rmtree(folder)
