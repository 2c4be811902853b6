"""Open the coordinator's state folder: lock it, compare it with the task, rebuild what is damaged."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.lease.heartbeat import forget_cluster
from coordinator.lease.keeper import LeaseKeeper
from coordinator.objects.blobs import BlobStorage
from coordinator.privacy.noise_secret import NoiseSecret
from coordinator.recovery.blob_place import check_place
from coordinator.recovery.folder_owner import check_owner, own_task, rules_of
from coordinator.recovery.open_stores import Stores, open_stores
from coordinator.recovery.rebuild import add_since, open_or_rebuild
from coordinator.rollout.recorder import RolloutRecorder, open_rollouts
from coordinator.round_machine.events import Rules
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE, Location
from coordinator.storage.run_id import RunId
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import WriteBehindBuffer
from coordinator.workers import backbones
from coordinator.workers import labelled_data as labelled
from protocol.errors import LichenError
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.storage.files import disk_errors, sweep_below

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Storage:
    """The parts of a coordinator's state on disk.

    Attributes:
        root: the folder.
        store: the database.
        journal: accepted updates.
        stores: versions, bundles, accepted updates and uploads.
        ledger: writes rows to the database in the background.
        rollouts: the store of rollouts; None: each export goes to all devices at once.
        run_id: the id of the training run.
        labelled: the labelled windows, for the worker; None: the task has none.
        noise: the secret that the noise of a task with ``[privacy]`` follows from.
    """

    root: Path
    store: Database
    journal: Journal
    stores: Stores
    ledger: WriteBehindBuffer
    rollouts: RolloutRecorder | None
    run_id: RunId
    labelled: Path | None
    noise: NoiseSecret

    @property
    def blobs(self) -> BlobStorage:
        """Versions and bundles."""
        return self.stores.blobs


@contextmanager
def open_storage(
    settings: CoordinatorSettings,
    task: Task,
    clock: Clock,
    *,
    keeps_messages: bool,
    rng: random.Random | None = None,
    lease: LeaseKeeper | None = None,
) -> Iterator[Storage]:
    """Open the state folder; damage is reported, and repaired if possible.

    Args:
        settings: where it is.
        task: as the operator wrote it.
        clock: the time.
        keeps_messages: as of :class:`coordinator.storage.update_journal.Journal`.
        rng: draws the id of a training run; None takes the system's random numbers.
        lease: held; it guards all writes, and other processes have the folder open. None: this process has it
            alone.

    Raises:
        Misconfigured: it is not writable or is another task's, or the labelled windows cannot be used.
        Transient: the disk is full, or the bucket does not answer.
    """
    root = settings.state_dir
    with ExitStack() as stack:
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        windows, written = labelled.read(settings, task), task
        task = labelled.announced(task)
        rules = rules_of(task, settings)
        sweep_below(root)
        stores = open_stores(settings.storage, root, alone=lease is None)
        if lease is None:
            store = _open_database(
                settings.location, task, rules, clock, stores, keeps_messages=keeps_messages
            )
        else:  # a rebuild would take the database away from the other processes
            store = settings.location.database(alone=False, fence=lease.fence())
        stack.callback(store.close)
        if lease is None:
            forget_cluster(store)
        own_task(store, task, settings)
        check_place(store, settings)
        with disk_errors(root):
            backbones.keep(written, settings.task.parent, root, stores.blobs)
            kept = labelled.keep(windows, root, task)
        journal = Journal(store, stores.frames, keeps_messages=keeps_messages)
        on_server = settings.location.schema is not None
        fence = None if lease is None else lease.shared_fence(same_database=on_server)
        rollouts = open_rollouts(settings, store, clock, fence)
        if rollouts is not None:
            stack.callback(rollouts.close)
        ledger = WriteBehindBuffer(store, clock)
        stack.callback(_write_rest, ledger)
        yield Storage(
            root,
            store,
            journal,
            stores,
            ledger,
            rollouts,
            _run_id(settings.location, store, rng),
            kept,
            _noise(settings.location, store, rng),
        )


def _open_database(
    location: Location, task: Task, rules: Rules, clock: Clock, stores: Stores, *, keeps_messages: bool
) -> Database:
    """A damaged or missing file is rebuilt; PostgreSQL has checksums, replicas and backups of its own."""
    path, wall = location.state_dir / DATABASE, clock.wall()
    if location.schema is None:
        return open_or_rebuild(path, task, rules, wall, stores, keeps_messages=keeps_messages)
    store = location.database()
    try:
        add_since(
            store,
            path,
            task=task,
            rules=rules,
            wall=wall,
            stores=stores,
            keeps_messages=keeps_messages,
        )
    except BaseException:
        store.close()
        raise
    return store


def _run_id(location: Location, store: Database, rng: random.Random | None) -> RunId:
    """On SQLite in a file of its own, which a lost database leaves."""
    return RunId(location.state_dir, rng, None if location.schema is None else store)


def _noise(location: Location, store: Database, rng: random.Random | None) -> NoiseSecret:
    """Beside the run's id, for the same reason."""
    return NoiseSecret(location.state_dir, rng, None if location.schema is None else store)


@contextmanager
def open_shared_storage(
    settings: CoordinatorSettings, task: Task, clock: Clock, *, keeps_messages: bool
) -> Iterator[Storage]:
    """Open what a process needs that accepts updates for a leader; arguments as of :func:`open_storage`.

    Raises:
        Misconfigured: it is another task's, or cannot be read.
        Transient: the database cannot be used now.
    """
    root = settings.state_dir
    with ExitStack() as stack:
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        store = settings.location.database(alone=False)
        stack.callback(store.close)
        task = labelled.announced(task)
        check_owner(store, task, settings)
        check_place(store, settings)
        stores = open_stores(settings.storage, root, alone=False, folds=False)
        journal = Journal(store, stores.frames, keeps_messages=keeps_messages)
        ledger = WriteBehindBuffer(store, clock)
        stack.callback(_write_rest, ledger)
        yield Storage(
            root,
            store,
            journal,
            stores,
            ledger,
            None,
            _run_id(settings.location, store, None),
            None,
            _noise(settings.location, store, None),
        )


def _write_rest(ledger: WriteBehindBuffer) -> None:
    try:
        ledger.save()
    except LichenError as error:
        log.warning("not_written", why=str(error))
