"""The fleet's secret: what its devices share, and the coordinator never has.

Devices name the entities of their knowledge graphs to the coordinator by keyed hashes
(:mod:`models.knowledge_graph.data.keys`). The
key is 32 bytes that one operator makes once and gives to each device by hand, as hexadecimal in a file of its
own.
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
    """Where this device's copy is."""
    named = None if settings.graph is None else settings.graph.secret_file
    return named or folder_of(settings.state_dir).path / FILE


def make(path: Path) -> bytes:
    """A new secret in a file of its own, readable by its owner alone; or the one that is there.

    Raises:
        Misconfigured: something else is there, or the folder is closed to us.
        Transient: the disk is full.
    """
    if os.path.lexists(path):
        return read(path)
    secret = secrets.token_bytes(_BYTES)
    _write(path, secret)
    return secret


def read(path: Path) -> bytes:
    """A secret.

    Raises:
        Misconfigured: there is none, it is closed to us, or it is none.
    """
    data = read_small(path)
    if data is None:
        raise Misconfigured(f"{path}: the fleet's secret is not there; {_HOW}")
    found = _TEXT.fullmatch(data)
    if found is None:
        raise Misconfigured(f"{path}: this is no secret of a fleet (hexadecimal, one line); {_HOW}")
    return bytes.fromhex(found[1].decode())


def place(path: Path, secret: bytes, *, replace: bool) -> bool:
    """Put a secret where the agent reads it; False: it was there.

    Raises:
        Misconfigured: another one is there and ``replace`` is not set, or the folder is closed to us.
        Transient: the disk is full.
    """
    if os.path.lexists(path):
        if _is(path, secret):
            with disk_errors(path):
                path.chmod(_MODE)
            return False
        if not replace:
            raise Misconfigured(
                f"{path}: another secret is there; with a new one this device begins anew, and shares no "
                "entity with devices that have the old one: --replace does it all the same"
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
    """16 digits that tell secrets apart, and tell nothing of them: to compare devices with."""
    return hashlib.sha256(_PRINT + secret).hexdigest()[:16]


def exposed(path: Path) -> list[str]:
    """Words where others may read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return []
    if not mode & _OTHERS:
        return []
    words = "chmod 600 it; who has it and sees the coordinator's data can try out names of entities"
    return [f"{path} holds the fleet's secret and others may read it (mode {mode:04o}): {words}"]
