"""The secret that the noise of versions follows from: 32 random bytes of one training run.

A fold that is repeated after a crash, or by the next leader, must add the same noise: two versions of the
same updates with different noise would tell more than the account says. Who knows the secret can take the
noise away. It has a file of its own with mode 0600, which a lost database leaves; on PostgreSQL it is in the
database, which all leaders read.
"""

import random
import secrets
from pathlib import Path
from typing import Final

from coordinator.storage import schema
from coordinator.storage.database import Database
from models.privacy.key_stream import KEY_BYTES, derived_key
from models.privacy.noisy_fold import RoundNoise
from protocol.cohort import salt_of
from protocol.errors import Misconfigured
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task
from runtime.storage.files import disk_errors, write_atomic

FILE: Final = "noise_secret"


def public_salt(task: Task, round_: int, base: str) -> str:
    """The salt of a round without privacy: everybody can repeat the choice.

    Raises:
        ValueError: the task has a table ``[privacy]`` (a bug).
    """
    if task.privacy is not None:
        raise ValueError(f"task {task.name!r} has [privacy]: the salt of a round comes from the secret")
    return salt_of(task.seed, round_, base)


class NoiseSecret:
    """The secret of one ``state_dir``; drawn on first use.

    Args:
        folder: the coordinator's ``state_dir``.
        rng: draws it in a simulated world; None: the operating system's random numbers.
        shared: the database that holds it instead, for all machines of the run.
    """

    def __init__(
        self, folder: Path, rng: random.Random | None = None, shared: Database | None = None
    ) -> None:
        self._file = folder / FILE
        self._shared = shared
        self._rng = rng

    def round_noise(
        self, task: Task, round_: int, base: str, privacy: Privacy | None = None
    ) -> RoundNoise | None:
        """The noise of a round; None: the task has no table ``[privacy]``. Blocks for a disk.

        Args:
            task: what is learned.
            round_: its number.
            base: digest of the version's manifest that its updates start from.
            privacy: the task's table with the clip of this round; None: the task's clip.

        Raises:
            Misconfigured: the folder denies access, or the secret is damaged.
            Transient: the disk is full.
        """
        if task.privacy is None:
            return None
        about = ("round", task.name, str(round_), base)
        return RoundNoise(privacy or task.privacy, derived_key(self._get(), about))

    def salt(self, task: Task, round_: int, base: str) -> str:
        """The salt of a round's places, which nobody can compute beforehand; raises as :meth:`round_noise`.

        Without it, who has the versions could compute who took part, and sampling would hide nobody.
        """
        if task.privacy is None:
            return public_salt(task, round_, base)
        return derived_key(self._get(), ("salt", task.name, str(round_), base)).hex()[:32]

    def _drawn(self) -> str:
        drawn = secrets.token_bytes(KEY_BYTES) if self._rng is None else self._rng.randbytes(KEY_BYTES)
        return drawn.hex()

    def _get(self) -> bytes:
        if self._shared is not None:
            self._shared.insert_new(schema.meta, [{"key": FILE, "value": self._drawn()}])
            return _read(self._shared.get_meta(FILE) or "", f"{FILE} in {self._shared.where}")
        with disk_errors(self._file):
            try:
                text = self._file.read_text("ascii", errors="replace")
            except FileNotFoundError:
                text = self._drawn()
                write_atomic(self._file, text.encode())
        return _read(text, str(self._file))


def _read(text: str, where: str) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise Misconfigured(
            f"{where}: the secret of the noise is damaged: put it back from a backup. With another one a "
            "repeated round "
            "would be published with other noise, and tell more than its account says"
        )
    return secret
