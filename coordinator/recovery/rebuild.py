"""Rebuild the coordinator's state when its database is damaged or gone.

Three sources, each checked by itself: the backup of the last finished round, the manifests of the versions
(content-addressed, they name version and parent), and the frames of accepted updates, whose headers name
device and round. The newest state that they prove is rebuilt: an acknowledged update counts again. What they
cannot prove (the history since the backup, when devices were last heard) is lost, and reported. The damaged
file is kept beside the new one.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy.exc import DatabaseError

from coordinator.aggregation.reported_metrics import reported_metric_names, weighted_mean
from coordinator.privacy.account_store import AccountStore, account_of
from coordinator.recovery.evidence import frames_of, newest_manifest
from coordinator.recovery.open_stores import Stores
from coordinator.round_machine import table
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.round_machine.device_sets import NO_WORDS, NONE, DeviceSet
from coordinator.round_machine.events import Checkpoint, RoundPhase, RoundState, Rules, VersionMade
from coordinator.round_machine.queries import replay
from coordinator.storage import schema
from coordinator.storage.backup import backup_of, trouble_in
from coordinator.storage.database import Database
from coordinator.storage.engines.sqlite import DatabaseDamaged, is_damage
from coordinator.storage.update_journal import Journal
from protocol.errors import LichenError, Reason, Refused
from protocol.tasks.task import Task
from runtime.storage.files import remove, rename, sync_folder, write_atomic
from runtime.text import first_few

log = structlog.get_logger(__name__)

_FILE_SUFFIXES: Final = ("-wal", "-shm", "")
"""Files of a SQLite database; removing the last one removes the evidence of the database."""
_OPEN: Final = (RoundPhase.WAITING, RoundPhase.COLLECTING, RoundPhase.AGGREGATING)
META: Final = "salvaged"
"""The key of the report on the last rebuild, for ``history``."""
DUE: Final = "rebuild_due"
"""The key of the reason why the next start adds what blobs and frames prove; empty: it need not."""


@dataclass
class _Rebuild:
    """One rebuild; ``words`` is its report."""

    path: Path
    task: Task
    rules: Rules
    wall: float
    keeps_messages: bool
    stores: Stores
    words: list[str] = field(default_factory=list)

    def run(self, why: str) -> Database:
        """Until the marker is removed, an interrupted rebuild starts again at the next start."""
        self.words.append(why)
        mark = rebuild_marker(self.path)
        if not mark.exists():
            for suffix in _FILE_SUFFIXES:
                remove(self._aside(suffix))
            write_atomic(mark, why.encode())
        self._move_aside()
        self._restore()
        store = Database(self.path)
        try:
            self.add_to(store)
            remove(mark)
            sync_folder(mark.parent)
        except BaseException:
            store.close()
            raise
        return store

    def _aside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.damaged{suffix}")

    def _move_aside(self) -> None:
        """Keep the damaged files, and remove those of an earlier attempt."""
        for suffix in _FILE_SUFFIXES:
            file = self.path.with_name(self.path.name + suffix)
            if file.exists() and not (self._aside("").exists() or self._aside(suffix).exists()):
                rename(file, self._aside(suffix))
            else:
                remove(file)
        sync_folder(self.path.parent)

    def _restore(self) -> None:
        copy = backup_of(self.path)
        if not copy.is_file():
            self.words.append("there is no backup yet: metrics, history and roster are lost")
            return
        trouble = trouble_in(copy)
        if trouble:
            self.words.append(f"the backup {copy} is damaged as well ({trouble}): the history is lost")
            return
        made = datetime.fromtimestamp(copy.stat().st_mtime, UTC).isoformat(sep=" ", timespec="seconds")
        write_atomic(self.path, copy.read_bytes())
        self.words.append(f"restored from the backup of {made}; the history since then is lost")

    def add_to(self, store: Database) -> None:
        """Add what blobs and frames prove."""
        try:
            state, _ = replay(store.journal())
        except DatabaseDamaged as error:  # damaged values inside of sound pages
            self.words.append(f"the backup's journal is of no use: {error}")
            state = RoundState()
        with store.transaction():
            if trouble := _task_trouble(store):
                self.words.append(f"the backup is damaged as well ({trouble}): whose it is was not compared")
                store.put_meta({"task": self.task.model_dump_json()})
            state = self._newest(store, state)
            before = state
            state, found = self._open_round(state)
            journal = Journal(store, self.stores.frames, keeps_messages=self.keeps_messages)
            journal.record_all(found, self.wall)
            self._lose(store, journal, before, state)
            words = "; ".join(self.words)
            if state.version >= 0:
                state = state.model_copy(update={"trouble": f"salvaged: {words}"[:500]})
                store.append(Checkpoint(state=state, rules=self.rules), self.wall)
            store.put_meta({META: f"{datetime.fromtimestamp(self.wall, UTC).isoformat()}: {words}"})
        log.error("database_salvaged", file=str(self.path), round=state.round, words=self.words)

    def _newest(self, store: Database, state: RoundState) -> RoundState:
        """The state after the newest version whose blobs are all here."""
        found = newest_manifest(self.stores.blobs, self.task)
        if found is None or found[1].version <= state.version:
            return state
        digest, manifest = found
        before = state.model_copy(
            update={
                "phase": RoundPhase.AGGREGATING if manifest.version else RoundPhase.INITIALISING,
                "round": manifest.version,
                "version": manifest.version - 1,
            }
        )
        made = VersionMade(version=manifest.version, manifest=digest)
        after, _ = table.apply(self.rules, before, made, self.wall)
        headers = [one.header for one in self._frames(manifest.version)]
        store.put(
            schema.versions,
            version=manifest.version,
            manifest=digest,
            parent=manifest.parent,
            wall=self.wall,
            devices=sorted({one.device for one in headers}),
            metrics=weighted_mean(
                reported_metric_names(self.task), ((one.samples, one.metrics) for one in headers)
            ),
            confusion=None,
            bytes_up=int(store.get_meta("bytes_up") or 0),
            bytes_down=int(store.get_meta("bytes_down") or 0),
            trouble="",
        )
        if (account := account_of(self.task, manifest.version)) is not None:
            AccountStore(store).write(manifest.version, account)
        self.words.append(f"version {manifest.version} was taken from its manifest")
        return after

    def _lose(self, store: Database, journal: Journal, before: RoundState, after: RoundState) -> None:
        """Report updates as refused that the backup knows as accepted and whose frames are unusable."""
        if before.round != after.round or before.phase not in _OPEN:
            return
        gone = sorted(set(before.delivered) - set(after.delivered))
        for device in gone:
            words = "the accepted update's frame was damaged or missing when the database was rebuilt"
            journal.mark_lost(before.round, device, Refused(Reason.WRONG_DIGEST, words), self.wall)
            store.count_refusals(device, Reason.WRONG_DIGEST.value, 1, words, self.wall)
        if gone:
            self.words.append(f"updates for round {before.round} are lost, and come again: {first_few(gone)}")

    def _frames(self, round_: int) -> list[ReceivedUpdate]:
        self.stores.frames.fetch_round(round_)
        return frames_of(self.stores.frames.root / str(round_), self.task, round_)

    def _open_round(self, state: RoundState) -> tuple[RoundState, list[ReceivedUpdate]]:
        """The round after the newest version, with the updates that were accepted in it counted again."""
        if state.version < 0:
            return state, []
        round_ = state.version + 1
        found = [one for one in self._frames(round_) if one.header.base == state.manifest]
        if not found and not (state.round == round_ and state.delivered):
            return state, []
        devices = {one.header.device for one in found}
        if state.round == round_ and state.phase in _OPEN:
            invited, attempt, refused = state.invited, state.attempt, state.refused
        else:
            invited, attempt, refused = NONE, 1, NO_WORDS
        self.words.append(f"{len(found)} accepted updates of round {round_} count again, from their frames")
        fresh = {
            "phase": RoundPhase.WAITING,
            "round": round_,
            "attempt": attempt,
            "selected": NONE,
            "invited": invited.adding(devices),
            "delivered": DeviceSet(devices),
            "refused": refused.without(devices),
            "since": self.wall,
            "until": None,
            "enough_since": None,
            "failures": 0,
            "retry_at": None,
            "closed_by": "",
        }
        return state.model_copy(update=fresh), found


def rebuild_marker(database: Path) -> Path:
    """A file that exists while a rebuild is not finished."""
    return database.with_name(f"{database.name}.salvaging")


def add_since(
    store: Database,
    path: Path,
    *,
    task: Task,
    rules: Rules,
    wall: float,
    stores: Stores,
    keeps_messages: bool,
) -> None:
    """Add what blobs and frames prove to tables that were restored from a copy; otherwise nothing.

    Args:
        store: open.
        path: for messages.
        task: what the coordinator runs.
        rules: of its round machine.
        wall: Unix seconds.
        stores: its blobs and accepted updates.
        keeps_messages: as of :class:`coordinator.storage.update_journal.Journal`.
    """
    if not (why := store.get_meta(DUE)):
        return
    salvage = _Rebuild(path, task, rules, wall, keeps_messages, stores, [why])
    with store.transaction():
        salvage.add_to(store)
        store.put_meta({DUE: ""})


def open_or_rebuild(
    path: Path, task: Task, rules: Rules, wall: float, stores: Stores, *, keeps_messages: bool = False
) -> Database:
    """Open the coordinator's database; a damaged or missing one is rebuilt first.

    Args:
        path: ``coordinator.sqlite3``.
        task: what the coordinator runs.
        rules: of its round machine.
        wall: Unix seconds.
        stores: its blobs and accepted updates.
        keeps_messages: as of :class:`coordinator.storage.update_journal.Journal`.

    Raises:
        Misconfigured: the folder is not ours, or the file is of a newer lichen.
        Transient: the disk is full.
    """
    salvage = _Rebuild(path, task, rules, wall, keeps_messages, stores)
    if rebuild_marker(path).exists():
        return salvage.run("an earlier rebuild was interrupted")
    if not path.exists() and backup_of(path).exists():
        return salvage.run(f"{path} is gone")
    store: Database | None = None
    try:
        store = Database(path)
        replay(store.journal())
        _check_words(store, path)
    except DatabaseDamaged as error:
        if store is not None:
            store.close()
        return salvage.run(str(error))
    except DatabaseError as error:  # its pages passed the check, and still cannot be read
        if store is not None:
            store.close()
        if not is_damage(error):
            raise
        return salvage.run(f"{path}: {error.orig}")
    except LichenError:
        if store is not None:
            store.close()
        raise
    return store


def _check_words(store: Database, path: Path) -> None:
    """Check that everything that each start reads is readable."""
    if store.get_meta("task") is None and backup_of(path).exists():
        raise DatabaseDamaged(f"{path}: the database is empty, though there is a backup of it")
    if trouble := _task_trouble(store):
        raise DatabaseDamaged(f"{path}: {trouble}")


def _task_trouble(store: Database) -> str:
    known = store.get_meta("task")
    try:
        if known is not None:
            Task.model_validate_json(known)
    except ValueError as error:
        return f"meta: the task cannot be read: {error}"[:500]
    return ""
