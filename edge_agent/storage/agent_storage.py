"""What an agent keeps on its disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.config.agent import AgentSettings
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
"""In the state folder: updates that wait for their receipt."""


@dataclass(frozen=True)
class AgentStorage(StatusPart):
    """The open files of one agent; :func:`open_storage` opens them, and nobody else may meanwhile."""

    lock: FolderLock
    blobs: BlobStore
    spool: Spool
    ledger: RoundLedger
    private: PrivateTensors
    privacy: PrivacyAccount

    def status(self) -> dict[str, Any]:
        """What this process wrote to the disk."""
        return {"disk_writes": DISK.get().wear()}

    @contextmanager
    def saving(self, task: str, private: Tensors, account: DeviceAccount | None) -> Iterator[None]:
        """Write what a method keeps, before what is written within; an error there takes it back.

        The privacy account comes first: it may count an update that is never sent, but must not miss one that
        is. Where the disk is full nothing was sent, and nothing is counted.
        """
        with self.privacy.saved(account), self.private.restored_on_error(task, by=LichenError):
            self.private.write(task, private)
            yield

    def close(self) -> None:
        """After all services have ended."""
        self.spool.close()
        self.lock.close()


def open_storage(
    settings: AgentSettings, clock: Clock, make_spool: Callable[..., Spool] = Spool
) -> AgentStorage:
    """Lock the state folder, remove what interrupted writes left behind, and open the files.

    Args:
        settings: say where.
        clock: of the times in them.
        make_spool: as the constructor of ``runtime.storage.spool.Spool``.

    Raises:
        Misconfigured: another agent runs on this state_dir, or a folder is closed to us.
    """
    root = settings.state_dir
    lock = FolderLock(root / LOCK_FILE, "agent")
    try:
        sweep_below(root)
        return AgentStorage(
            lock,
            BlobStore(settings.cache_dir / "blobs"),
            make_spool(root / SPOOL, settings.outbox.budget_bytes, wall=clock.wall),
            RoundLedger(root / "rounds.json", clock, settings.outbox.resend_s),
            PrivateTensors(root / "private"),
            PrivacyAccount(root / PRIVACY_FILE, settings.learn),
        )
    except BaseException:
        lock.close()
        raise
