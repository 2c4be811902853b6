"""The journal of accepted updates: frames synced to disk, then rows in one transaction with their events.

A ``Receipt`` is sent only after that transaction is on disk (docs/reliability.md). An update that came alone
is in a file named by its digest, a group of updates in one file (:mod:`coordinator.storage.frame_files`). An
empty ``<digest>.lost`` beside them marks a frame as void, also without the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from coordinator.objects.frames import FolderFrames, FrameStore
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.frame_files import group_name, pack
from models.contract import Update
from models.worker import update_views
from protocol.errors import Refused
from protocol.frames.frame import Limits
from protocol.secure_aggregation.updates import method_message

VOID_SUFFIX: Final = ".lost"
_MADE: Final = (schema.weighings, schema.secure_rounds)
_OF_ROUNDS: Final = (schema.updates, schema.device_metrics, schema.attempts, *_MADE)
_DETAILED: Final = sa.or_(
    schema.versions.c.confusion.is_not(sa.null()),
    sa.func.length(sa.cast(schema.versions.c.devices, sa.Text)) > len("[]"),
)
"""Versions whose row lists the contributors, or the confusion of classes."""
_ROUNDS_FORGOTTEN_AT_ONCE: Final = 8
"""Rounds that are removed from the history at a time if it is too large."""
WITHDRAWN_S: Final = 30 * 86400.0
"""A withdrawn update that its device has not confirmed for this long is not reported any more."""
MAX_WITHDRAWN: Final = 16
"""Withdrawn updates of one device that are stored, the newest."""
MAX_WITHDRAWN_OF_ALL: Final = 5_000
"""The same for all devices: invented names that never return must not fill the disk."""


@dataclass(frozen=True, slots=True)
class AcceptedUpdate:
    """One accepted update: device, digest, and location (``size`` None: the whole file)."""

    device: str
    digest: str
    path: Path
    at: int = 0
    size: int | None = None

    def verified(self) -> bytes:
        """The accepted bytes; raises as :meth:`models.worker.update_views.FrameAt.verified`."""
        return self.frame.verified()

    def read(self, limits: Limits) -> Update:
        """The decoded update; raises as :meth:`models.worker.update_views.FrameAt.read`."""
        return self.frame.read(limits)

    @property
    def folder(self) -> Path:
        """The round's folder."""
        return self.path.parent

    @property
    def frame(self) -> update_views.FrameAt:
        """The location for the worker."""
        return update_views.FrameAt(self.device, self.digest, str(self.path.resolve()), self.at, self.size)


class Journal:
    """Accepted updates in files (one folder a round), their headers in the database. Thread-safe.

    Args:
        store: the database.
        frames: the files; a path is that of a folder.
        keeps_messages: store the method's own message of each device's last update, too.
    """

    def __init__(self, store: Database, frames: FrameStore | Path, *, keeps_messages: bool = False) -> None:
        self._store = store
        self._frames = FolderFrames(frames) if isinstance(frames, Path) else frames
        self._keeps_messages = keeps_messages
        table = schema.withdrawn
        rows = store.rows(sa.select(table.c.device).distinct())
        self._unconfirmed = {row["device"] for row in rows}

    def path(self, round_: int, digest: str) -> Path:
        """Path of a frame that came alone."""
        return self._frames.root / str(round_) / digest

    def write_all(self, round_: int, frames: Sequence[tuple[str, bytes]]) -> list[tuple[str, int]]:
        """Write frames (digest and bytes) with as few syncs as one needs.

        Returns:
            For each the file in the round's folder and the offset of the frame, for its row.

        Raises:
            Transient: the disk is full.
        """
        # They may have been lost once, and come again.
        self._frames.remove(round_, [f"{frame}{VOID_SUFFIX}" for frame, _ in frames])
        if len(frames) == 1:
            self.write(round_, *frames[0])
            return [("", 0)]
        content, offsets = pack(frames)
        name = group_name(frames)
        self._frames.write(round_, name, content)
        return [(name, at) for at in offsets]

    def mark_void(self, round_: int, digest: str) -> None:
        """Mark a frame as void: its device was told so."""
        self._frames.write(round_, f"{digest}{VOID_SUFFIX}", b"")

    def write(self, round_: int, digest: str, payload: bytes) -> None:
        """Write a frame. Without a row it is not counted, and is removed with its round's folder."""
        self._frames.write(round_, digest, payload)

    def record(self, update: ReceivedUpdate, wall: float) -> None:
        """Write the row of one update, as :meth:`record_all`."""
        self.record_all([update], wall)

    def record_all(self, updates: Sequence[ReceivedUpdate], wall: float) -> None:
        """Write the rows of a group; the driver calls it in the transaction of the machine's event."""
        for one in updates:
            if one.header.device in self._unconfirmed:  # the same bytes as a withdrawn update: they count now
                self.confirmed(one.header.device, [one.digest])
        self._store.put_all(schema.updates, [row_of(one, wall) for one in updates])
        self.record_messages(updates)

    def record_messages(self, updates: Sequence[ReceivedUpdate]) -> None:
        """Write the method's own messages of accepted updates, if they are kept; in their transaction."""
        if self._keeps_messages:
            found = [(one.header, method_message(one.header.extra)) for one in updates]
            rows = [{"device": h.device, "round": h.round, "extra": m} for h, m in found if m is not None]
            self._store.put_all(schema.messages, rows)

    def digests(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], str]:
        """What these devices delivered in these rounds: round and device -> digest, without lost ones."""
        wanted, table = set(keys), schema.updates
        found: dict[tuple[int, str], str] = {}
        for round_ in {round_ for round_, _ in wanted}:
            devices = [device for known, device in wanted if known == round_]
            query = sa.select(table.c.device, table.c.digest).where(
                table.c.round == round_, table.c.device.in_(devices), table.c.lost == ""
            )
            found |= {(round_, row["device"]): row["digest"] for row in self._store.rows(query)}
        return found

    def digests_of(self, round_: int) -> dict[str, str]:
        """What was delivered in a round: device -> digest, without lost ones."""
        table = schema.updates
        query = sa.select(table.c.device, table.c.digest).where(table.c.round == round_, table.c.lost == "")
        return {row["device"]: row["digest"] for row in self._store.rows(query)}

    def find(self, device: str, digest: str) -> int | None:
        """The round in which exactly this update was accepted."""
        table = schema.updates
        query = sa.select(table.c.round).where(
            table.c.digest == digest, table.c.device == device, table.c.lost == ""
        )
        found = self._store.rows(query)
        return int(found[0]["round"]) if found else None

    def digest_of(self, round_: int, device: str) -> str | None:
        """The digest that this device delivered in that round."""
        table = schema.updates
        query = sa.select(table.c.digest).where(
            table.c.round == round_, table.c.device == device, table.c.lost == ""
        )
        found = self._store.rows(query)
        return str(found[0]["digest"]) if found else None

    def entries(self, round_: int, devices: Iterable[str]) -> list[AcceptedUpdate]:
        """The updates of these devices, sorted by device; their files are on this machine.

        Raises:
            Transient: the store of the files does not answer.
        """
        table = schema.updates
        # Without the headers: those of 10,000 updates take 50 MB.
        columns = (table.c.round, table.c.device, table.c.digest, table.c.size, table.c.file, table.c.at)
        query = sa.select(*columns).where(table.c.round == round_).order_by(table.c.device)
        wanted = set(devices)
        rows = [row for row in self._store.rows(query) if row["device"] in wanted]
        self._frames.fetch(round_, sorted({row["file"] or row["digest"] for row in rows}))
        return [self._entry(row) for row in rows]

    def _entry(self, row: Mapping[str, Any]) -> AcceptedUpdate:
        if not row["file"]:
            return AcceptedUpdate(row["device"], row["digest"], self.path(row["round"], row["digest"]))
        path = self._frames.root / str(row["round"]) / row["file"]
        return AcceptedUpdate(row["device"], row["digest"], path, row["at"], row["size"])

    def told(self, round_: int, devices: Iterable[str]) -> list[tuple[int, dict[str, float]]]:
        """Samples and metrics in the headers of these devices' updates, in no order."""
        table, wanted = schema.updates, set(devices)
        query = sa.select(table.c.device, table.c.header).where(table.c.round == round_)
        with self._store.transaction() as connection:  # one header after the other
            found = ((device, header) for device, header in connection.execute(query))
            return [(one["samples"], one["metrics"]) for device, one in found if device in wanted]

    def mark_lost(self, round_: int, device: str, refused: Refused, wall: float) -> None:
        """Withdraw an accepted update that turned out unusable; the device may deliver again."""
        table, old = schema.updates, schema.withdrawn
        where = (table.c.round == round_) & (table.c.device == device)
        with self._store.transaction() as connection:
            digest = connection.execute(sa.select(table.c.digest).where(where)).scalar_one_or_none()
            connection.execute(table.update().where(where).values(lost=str(refused)[:500]))
            if digest is None:
                return
            row = {"device": device, "digest": digest, "round": round_, "wall": wall}
            row |= {"reason": refused.reason.value, "detail": refused.detail[:400]}
            self._store.put(old, **row)
            newest = sa.select(old.c.digest).where(old.c.device == device)
            kept = newest.order_by(old.c.wall.desc()).limit(MAX_WITHDRAWN)
            connection.execute(old.delete().where(old.c.device == device, old.c.digest.not_in(kept)))
            _forget_withdrawn(connection)
        self._unconfirmed.add(device)

    def has_unconfirmed(self, device: str) -> bool:
        """Whether this device may not know yet that an accepted update was withdrawn; cheap."""
        return device in self._unconfirmed

    def withdrawn(self, device: str) -> list[dict[str, Any]]:
        """The withdrawn updates that a device has not confirmed, the oldest first: rows of the table."""
        table = schema.withdrawn
        return self._store.rows(sa.select(table).where(table.c.device == device).order_by(table.c.wall))

    def confirmed(self, device: str, digests: Iterable[str]) -> None:
        """Remove withdrawn updates that a device has confirmed, or that need no report any more.

        Raises:
            Transient: the disk fails now.
        """
        table = schema.withdrawn
        with self._store.transaction() as connection:
            of_device = table.c.device == device
            connection.execute(table.delete().where(of_device, table.c.digest.in_(list(digests))))
            left = connection.execute(sa.select(table.c.digest).where(of_device).limit(1)).first()
        if left is None:
            self._unconfirmed.discard(device)

    def forget_headers(self, before: int, keep: int, most_bytes: int | None = None) -> None:
        """Remove the oldest whole rounds from the history, down to about ``keep`` headers.

        Args:
            before: this round and later ones stay.
            keep: headers of earlier rounds.
            most_bytes: of the whole database; None: no limit.

        Raises:
            Transient: the disk fails now.
        """
        rounds = schema.updates.c.round
        query = sa.select(rounds).where(rounds < before).order_by(rounds.desc()).offset(keep).limit(1)
        with self._store.transaction() as connection:
            last = connection.execute(query).scalar_one_or_none()
            if last is not None:
                _forget_rounds(connection, last)
            while most_bytes is not None and self._store.used_bytes() > most_bytes:
                first = _oldest(connection, before)
                if first >= before:
                    break
                _forget_rounds(connection, min(first + _ROUNDS_FORGOTTEN_AT_ONCE - 1, before - 1))

    def database_bytes(self) -> int:
        """Bytes that a copy of the database takes."""
        return self._store.used_bytes()

    def forget_before(self, round_: int) -> None:
        """Remove the frames of folded rounds; their headers stay for the history."""
        self._frames.forget_before(round_)


def row_of(update: ReceivedUpdate, wall: float) -> dict[str, Any]:
    """An accepted update as a row of ``schema.updates``; ``wall`` is Unix seconds."""
    header = update.header
    content = header.model_dump(mode="json", exclude={"extra"})
    row = {"round": header.round, "device": header.device, "digest": update.digest, "size": update.size}
    row |= {"wall": wall, "header": content, "lost": ""}
    return row | {"file": update.file, "at": update.at, "blobs": list(update.blobs)}


def _forget_withdrawn(connection: sa.Connection) -> None:
    """The oldest go where there are too many, some more than must: it is not to be done for each update."""
    table = schema.withdrawn
    if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() <= MAX_WITHDRAWN_OF_ALL:
        return
    newest = sa.select(table.c.device, table.c.digest).order_by(table.c.wall.desc(), table.c.device)
    older = newest.offset(MAX_WITHDRAWN_OF_ALL * 9 // 10)
    connection.execute(table.delete().where(sa.tuple_(table.c.device, table.c.digest).in_(older)))


def _forget_rounds(connection: sa.Connection, last: int) -> None:
    """Remove rows up to this round. A version's row stays: others name it as their parent."""
    for table in _OF_ROUNDS:
        connection.execute(table.delete().where(table.c.round <= last))
    versions, parts = schema.versions, schema.parts
    connection.execute(parts.delete().where(parts.c.version <= last))
    old = versions.update().where(versions.c.version <= last, _DETAILED)
    connection.execute(old.values(devices=[], confusion=None))


def _oldest(connection: sa.Connection, default: int) -> int:
    """The first round with rows that :func:`_forget_rounds` removes."""
    columns = (*(table.c.round for table in _OF_ROUNDS), schema.parts.c.version)
    first = [sa.select(sa.func.min(column)) for column in columns]
    first.append(sa.select(sa.func.min(schema.versions.c.version)).where(_DETAILED))
    found = [connection.execute(query).scalar_one() for query in first]
    return min((one for one in found if one is not None), default=default)
