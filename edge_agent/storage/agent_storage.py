"""The files of an agent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.config.agent import AgentSettings
from edge_agent.storage.device_blobs import DeviceBlobs
from edge_agent.storage.privacy_account import PRIVACY_FILE, PrivacyAccount
from edge_agent.storage.private_tensors import PrivateTensors
from edge_agent.storage.round_ledger import RoundLedger
from models.contract import Tensors
from models.privacy.device_account import DeviceAccount
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.storage.blob_store import BlobStore
from runtime.storage.disk import DISK
from runtime.storage.files import sweep_below
from runtime.storage.folder_lock import FolderLock
from runtime.storage.spool import Spool
from runtime.waits import StatusPart

LOCK_FILE: Final = "agent.lock"
SPOOL: Final = "spool.sqlite3"
"""In the state folder: updates without a receipt."""
BLOBS: Final = "blobs"
"""In the cache folder: the blob store."""


@dataclass(frozen=True)
class AgentStorage(StatusPart):
    """The open files of one agent; :func:`open_storage` opens them for one process at a time."""

    lock: FolderLock
    blobs: BlobStore
    spool: Spool
    ledger: RoundLedger
    private: PrivateTensors
    privacy: PrivacyAccount
    shared: DeviceBlobs

    def status(self) -> dict[str, Any]:
        """Bytes this process wrote to the disk."""
        return {"disk_writes": DISK.get().wear()}

    @contextmanager
    def saving(self, task: str, private: Tensors, account: DeviceAccount | None) -> Iterator[None]:
        """Write a method's private tensors, then run the body; an error in it restores the former ones.

        The privacy account is written first: it may count an update that is never sent, but must not miss one
        that is. If the disk is full, nothing is sent and nothing is counted.
        """
        with self.privacy.saved(account), self.private.restored_on_error(task, by=LichenError):
            self.private.write(task, private)
            yield

    def close(self) -> None:
        """Close the files, after all services have ended."""
        self.spool.close()
        self.lock.close()


def open_storage(
    settings: AgentSettings,
    clock: Clock,
    make_spool: Callable[..., Spool] = Spool,
    *,
    privacy: PrivacyAccount | None = None,
    shared: DeviceBlobs | None = None,
) -> AgentStorage:
    """Lock the state folder, remove the remains of interrupted writes, and open the files.

    Args:
        settings: give the paths.
        clock: of the times in the files.
        make_spool: as the constructor of ``runtime.storage.spool.Spool``.
        privacy: the device's account, for a further task: its tasks learn from the same streams. None: the
            one in this folder.
        shared: knows the blobs of the device's other tasks. None: it has one task.

    Raises:
        Misconfigured: another agent runs on this state_dir, or access to a folder is denied.
    """
    root = settings.state_dir
    lock = FolderLock(root / LOCK_FILE, "agent")
    try:
        sweep_below(root)
        return AgentStorage(
            lock,
            BlobStore(settings.cache_dir / BLOBS),
            make_spool(root / SPOOL, settings.outbox.budget_bytes, wall=clock.wall),
            RoundLedger(root / "rounds.json", clock, settings.outbox.resend_s),
            PrivateTensors(root / "private"),
            privacy or PrivacyAccount(root / PRIVACY_FILE, settings.learn),
            shared or DeviceBlobs(),
        )
    except BaseException:
        lock.close()
        raise
