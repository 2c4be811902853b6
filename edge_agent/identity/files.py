"""``<state_dir>/identity``: what is in it, in which order it is written, and who may read it.

====================  ==========================================================================
``next-key.pem``      the key that a certificate is being asked for; kept until that is here
``ca.pem``            whom to trust: the coordinator's service and the broker
``device.pem``        the certificate and its key in one file: a pair in two files cannot be replaced in
                      one step, and a power cut in between would leave a key that fits no certificate
``identity.json``     names, times, where to renew
``root.json``         who signs bundles (:mod:`edge_agent.trust.trusted_metadata`), where the fleet has that
====================  ==========================================================================

Each is replaced as a whole, in this order; whoever begins again after a power cut goes on where it stopped.
"""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from protocol.base import Digest, Name, Wire
from protocol.errors import Misconfigured
from runtime.mqtt.certificate_dates import IDENTITY_FILE
from runtime.storage.files import disk_errors, make_folder, remove, sync_folder, write_atomic

FOLDER: Final = "identity"
_MAX_BYTES: Final = 256 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
Unix = Annotated[float, Field(ge=0, le=2**40)]


class Identity(Wire):
    """``identity.json``. Times are unix seconds."""

    fleet: Name
    device: Name
    url: Annotated[str, Field(pattern=r"^https://[^/\s]{1,253}$")]
    """Of the coordinator's enrolment service."""
    ca_sha256: Digest
    invite_sha256: Digest
    """Of the invite's token: so that a command given twice is known again."""
    issued_at: Unix
    """When the certificate was really issued, by the coordinator's clock; the certificate is back-dated."""
    not_after: Unix
    serial: Annotated[str, Field(pattern=r"^[0-9a-f]{1,40}$")]
    broker_host: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,253}$")] = ""
    """Empty: the configuration's own."""
    broker_port: Annotated[int, Field(ge=1, le=65535)] = 8883


@dataclass(frozen=True)
class IdentityFiles:
    """The files of one identity; ``path`` is the folder."""

    path: Path

    @property
    def next_key(self) -> Path:
        """The key of a request that has no answer yet."""
        return self.path / "next-key.pem"

    @property
    def pair(self) -> Path:
        """Certificate and key."""
        return self.path / "device.pem"

    @property
    def authority(self) -> Path:
        """Whom to trust."""
        return self.path / "ca.pem"

    @property
    def root(self) -> Path:
        """Who signs bundles."""
        return self.path / "root.json"

    @property
    def record(self) -> Path:
        """Names and times."""
        return self.path / IDENTITY_FILE

    def read(self) -> Identity | None:
        """What is known; None: this device has not enrolled.

        Raises:
            Misconfigured: the file is damaged or closed to us.
        """
        data = read_small(self.record)
        if data is None:
            return None
        try:
            return Identity.model_validate_json(data)
        except ValidationError:
            raise Misconfigured(
                f"{self.record}: damaged; enrol this device again: lichen agent enroll --replace INVITE"
            ) from None

    @property
    def lock(self) -> Path:
        """Held while something here changes."""
        return self.path / "lock"

    def make(self) -> None:
        """The folder, closed to others.

        Raises:
            Transient: the disk is full.
            Misconfigured: the folder above is closed to us.
        """
        with disk_errors(self.path):
            make_folder(self.path)
            if stat.S_IMODE(self.path.stat().st_mode) & _OTHERS:
                self.path.chmod(0o700)

    def write(self, path: Path, data: bytes) -> None:
        """Replace one file: readable by its owner alone, durable, and never half.

        Raises:
            Transient: the disk is full; nothing changed.
            Misconfigured: the folder is closed to us.
        """
        write_atomic(path, data)

    def tidy(self) -> None:
        """Remove what a power cut left half written: it may be a key. Only under :attr:`lock`."""
        with disk_errors(self.path):
            for part in self.path.glob(".tmp-*"):
                remove(part)

    def forget_next_key(self) -> None:
        """The request was answered, and what it brought is written."""
        with disk_errors(self.next_key):
            remove(self.next_key)
            sync_folder(self.path)

    def exposed(self) -> list[str]:
        """Words for each private file that others may read."""
        found = []
        for path in (self.next_key, self.pair):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:  # not there, or closed to us: then it is not open to others either
                continue
            if mode & _OTHERS:
                found.append(
                    f"{path} holds a private key and others may read it (mode {mode:04o}): chmod 600 it; if "
                    "somebody else may have read it, revoke the device and enrol it again"
                )
        return found


def folder_of(state_dir: Path) -> IdentityFiles:
    """The identity of the agent with this ``state_dir``."""
    return IdentityFiles(state_dir / FOLDER)


def read_small(path: Path) -> bytes | None:
    """A file of at most 256 KB; None: there is none.

    Raises:
        Misconfigured: it is closed to us, or too large to be ours.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Misconfigured(
            f"{path}: {error.strerror}: it must be readable for the user of the agent's service; run "
            "commands as that user, or as root"
        ) from None
    if len(data) > _MAX_BYTES:
        raise Misconfigured(f"{path}: larger than {_MAX_BYTES} bytes: this is no file of lichen's")
    return data
