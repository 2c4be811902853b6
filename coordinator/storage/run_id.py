"""A random id that distinguishes training runs of one task in one folder.

A coordinator whose ``state_dir`` was removed makes version 0 from the task's seed again. The id is part of
the manifest of version 0, so the two have different digests, and updates of the earlier run are refused as
``wrong_base``. It has a file of its own: a lost database is rebuilt from the updates, which name that digest.
"""

import random
import re
from pathlib import Path
from typing import Final

from coordinator.storage import schema
from coordinator.storage.database import Database
from runtime.storage.files import disk_errors, write_atomic

FILE: Final = "run_id"
_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


class RunId:
    """The id of one ``state_dir``; drawn on first use.

    Args:
        folder: the coordinator's ``state_dir``.
        rng: draws it; None: the operating system's random numbers.
        shared: the database that holds it instead, for all machines of the run.
    """

    def __init__(
        self, folder: Path, rng: random.Random | None = None, shared: Database | None = None
    ) -> None:
        self._file = folder / FILE
        self._shared = shared
        self._rng = rng or random.SystemRandom()

    def get(self) -> str:
        """32 hexadecimal digits, constant from now on. Blocks for a disk.

        Raises:
            Misconfigured: the folder denies access.
            Transient: the disk is full.
        """
        if self._shared is not None:
            return self._stored(self._shared)
        with disk_errors(self._file):
            try:
                text = self._file.read_text("ascii", errors="replace")
            except FileNotFoundError:
                text = ""
        if not _ID.match(text):  # missing or damaged: only version 0 depends on it
            text = self._drawn()
            write_atomic(self._file, text.encode())
        return text

    def _drawn(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def _stored(self, store: Database) -> str:
        """The first process to ask decides."""
        store.insert_new(schema.meta, [{"key": FILE, "value": self._drawn()}])
        return store.get_meta(FILE) or ""
