"""The fleet's secret: shared by its devices, and unknown to the coordinator.

Devices name the entities of their knowledge graphs to the coordinator by keyed hashes
(:mod:`models.knowledge_graph.data.keys`). The key is 32 bytes that one operator makes once and gives to each
device by hand, as hexadecimal in a file of its own.
"""

import hashlib
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.files import folder_of, read_small
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors, write_atomic

FILE: Final = "fleet.secret"
_BYTES: Final = 32
_MODE: Final = 0o600
_TEXT: Final = re.compile(rb"\s*((?:[0-9a-f]{2}){16,64})\s*")
_PRINT: Final = b"lichen/fleet/print/1\x00"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_HOW: Final = (
    "lichen agent secret FILE makes one, once for the whole fleet; lichen agent enroll --fleet-secret FILE "
    "puts it in place on a device"
)


def secret_path(settings: AgentSettings) -> Path:
    """The path of this device's copy."""
    named = None if settings.graph is None else settings.graph.secret_file
    return named or folder_of(settings.device_dir).path / FILE


def make(path: Path) -> bytes:
    """Create a secret in a file of its own, readable by its owner alone; or read the existing one.

    Raises:
        Misconfigured: the file holds something else, or the folder denies access.
        Transient: the disk is full.
    """
    if os.path.lexists(path):
        return read(path)
    secret = secrets.token_bytes(_BYTES)
    _write(path, secret)
    return secret


def read(path: Path) -> bytes:
    """Read a secret.

    Raises:
        Misconfigured: the file is missing, denies access, or holds no secret.
    """
    data = read_small(path)
    if data is None:
        raise Misconfigured(f"{path}: the fleet's secret is missing; {_HOW}")
    found = _TEXT.fullmatch(data)
    if found is None:
        raise Misconfigured(f"{path}: not the secret of a fleet (hexadecimal, one line); {_HOW}")
    return bytes.fromhex(found[1].decode())


def place(path: Path, secret: bytes, *, replace: bool) -> bool:
    """Store a secret where the agent reads it; False: it was already there.

    Raises:
        Misconfigured: another one is there and ``replace`` is not set, or the folder denies access.
        Transient: the disk is full.
    """
    if os.path.lexists(path):
        if _is(path, secret):
            with disk_errors(path):
                path.chmod(_MODE)
            return False
        if not replace:
            raise Misconfigured(
                f"{path}: another secret is there; with a new one this device starts again, and shares no "
                "entity with devices that have the old one: --replace does it anyway"
            )
    _write(path, secret)
    return True


def _write(path: Path, secret: bytes) -> None:
    write_atomic(path, secret.hex().encode() + b"\n")


def _is(path: Path, secret: bytes) -> bool:
    try:
        return read(path) == secret
    except Misconfigured:
        return False


def fingerprint(secret: bytes) -> str:
    """16 digits that identify a secret and reveal nothing of it: to compare devices."""
    return hashlib.sha256(_PRINT + secret).hexdigest()[:16]


def exposed(path: Path) -> list[str]:
    """Warnings if others may read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return []
    if not mode & _OTHERS:
        return []
    words = "chmod 600 it; who has it and sees the coordinator's data can try out names of entities"
    return [f"{path} holds the fleet's secret and others may read it (mode {mode:04o}): {words}"]
