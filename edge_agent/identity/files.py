"""``<state_dir>/identity``: its files, their order of writing, and their permissions.

====================  ==========================================================================
``next-key.pem``      the key of a certificate request; kept until the certificate is here
``ca.pem``            the trusted authority of the coordinator's service and the broker
``device.pem``        the certificate and its key in one file: a pair in two files cannot be replaced in
                      one step, and a power cut in between would leave a key without its certificate
``identity.json``     names, times, the address for renewals
``root.json``         the trust root for bundles (:mod:`edge_agent.trust.trusted_metadata`), if any
====================  ==========================================================================

Each is replaced as a whole, in this order, so that a repeated command after a power cut continues there.
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
    """``identity.json``. Times are Unix seconds."""

    fleet: Name
    device: Name
    url: Annotated[str, Field(pattern=r"^https://[^/\s]{1,253}$")]
    """Of the coordinator's enrolment service."""
    ca_sha256: Digest
    invite_sha256: Digest
    """Hash of the invite's token: identifies a repeated command."""
    issued_at: Unix
    """When the certificate was issued, by the coordinator's clock; the certificate itself is back-dated."""
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
        """The key of a request without an answer."""
        return self.path / "next-key.pem"

    @property
    def pair(self) -> Path:
        """Certificate and key."""
        return self.path / "device.pem"

    @property
    def authority(self) -> Path:
        """The trusted authority."""
        return self.path / "ca.pem"

    @property
    def root(self) -> Path:
        """The trust root for bundles."""
        return self.path / "root.json"

    @property
    def record(self) -> Path:
        """Names and times."""
        return self.path / IDENTITY_FILE

    def read(self) -> Identity | None:
        """The identity; None: this device has not enrolled.

        Raises:
            Misconfigured: the file is damaged, or denies access.
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
        """Held during changes of these files."""
        return self.path / "lock"

    def make(self) -> None:
        """Create the folder, private to its owner.

        Raises:
            Transient: the disk is full.
            Misconfigured: the folder above denies access.
        """
        with disk_errors(self.path):
            make_folder(self.path)
            if stat.S_IMODE(self.path.stat().st_mode) & _OTHERS:
                self.path.chmod(0o700)

    def write(self, path: Path, data: bytes) -> None:
        """Replace one file atomically: durable, and readable by its owner alone.

        Raises:
            Transient: the disk is full; nothing changed.
            Misconfigured: the folder denies access.
        """
        write_atomic(path, data)

    def tidy(self) -> None:
        """Remove half-written files of a power cut: they may hold a key. Only under :attr:`lock`."""
        with disk_errors(self.path):
            for part in self.path.glob(".tmp-*"):
                remove(part)

    def forget_next_key(self) -> None:
        """Remove the request's key: its answer is stored."""
        with disk_errors(self.next_key):
            remove(self.next_key)
            sync_folder(self.path)

    def exposed(self) -> list[str]:
        """Warnings for each private file that others may read."""
        found = []
        for path in (self.next_key, self.pair):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:  # missing, or no access: then others have none either
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
        Misconfigured: it denies access, or is too large for a file of lichen.
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
        raise Misconfigured(f"{path}: larger than {_MAX_BYTES} bytes: this is not a file of lichen")
    return data
