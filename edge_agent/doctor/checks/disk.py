"""Folders: existence, owner, file system, and room for what the configuration allows."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import MIB, Finding, fail, ok, warn
from edge_agent.doctor.service_account import ServiceUser
from edge_agent.identity import fleet_secret
from edge_agent.identity.files import folder_of
from runtime import exit_codes

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_VOLATILE: Final = ("tmpfs", "ramfs")
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")
_WITHOUT_MODES: Final = ("vfat", "exfat", "msdos", "ntfs", "ntfs3")
_SPARE_BYTES: Final = 64 * MIB
"""With less free space nothing works for long."""
_SPARE_INODES: Final = 1000


@dataclass(frozen=True)
class FolderUsage:
    """A folder of the agent's.

    Attributes:
        key: of the configuration.
        path: as configured.
        there: the nearest folder that exists: itself, or one above it.
        mode, owner: of ``there``; owner is a user's id.
        writable: for the user in question.
        kind: of the file system, as mount names it; empty: unknown.
        read_only: how it is mounted.
        free_bytes: for ordinary users.
        used_bytes: in ``path`` already.
        free_inodes: -1: the file system has no such number.
        budget_bytes: limit of what the agent stores below ``path``, by its configuration.
    """

    key: str
    path: Path
    there: Path
    mode: int
    owner: int
    writable: bool
    kind: str
    read_only: bool
    free_bytes: int
    used_bytes: int
    free_inodes: int
    budget_bytes: int


def probe(settings: AgentSettings, person: ServiceUser) -> list[FolderUsage]:
    """State and cache.

    Raises:
        OSError: a folder cannot be read.
    """
    state = settings.store.budget_bytes + settings.outbox.budget_bytes
    budgets = {"state_dir": state, "cache_dir": settings.blob_budget_bytes}
    return [_look(key, getattr(settings, key), budget, person) for key, budget in budgets.items()]


def _look(key: str, path: Path, budget_bytes: int, person: ServiceUser) -> FolderUsage:
    there = path
    while not there.is_dir() and there != there.parent:
        there = there.parent
    status, room = there.stat(), os.statvfs(there)
    kind, options = mount_of(there.resolve(), Path("/proc/self/mountinfo").read_text(errors="replace"))
    return FolderUsage(
        key,
        path,
        there,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        person.may(os.W_OK | os.X_OK, status),
        kind,
        "ro" in options,
        room.f_bavail * room.f_frsize,
        sum(_size(file) for file in path.rglob("*")) if path.is_dir() else 0,
        room.f_favail if room.f_files else -1,
        budget_bytes,
    )


def _size(file: Path) -> int:
    try:
        return 0 if file.is_symlink() else file.stat().st_size
    except OSError:  # removed meanwhile, or access is denied
        return 0


def mount_of(path: Path, mountinfo: str) -> tuple[str, frozenset[str]]:
    """Kind and options of the file system that ``path`` lies on (proc(5), mountinfo)."""
    best, found = -1, ("", frozenset[str]())
    for line in mountinfo.splitlines():
        mount, _, super_ = line.partition(" - ")
        fields, more = mount.split(), super_.split()
        if len(fields) < 6 or len(more) < 3:  # noqa: PLR2004 - fields of the format
            continue
        point = Path(fields[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= best:  # a later mount covers an earlier one
            best = len(point.parts)
            found = more[0], frozenset([*fields[5].split(","), *more[2].split(",")])
    return found


def judge(folders: Iterable[FolderUsage], person: ServiceUser, exposed: Iterable[str]) -> list[Finding]:
    """Findings for each folder, and for ``exposed``: messages on secrets that other users may read."""
    found: list[Finding] = []
    for folder in folders:
        found += [*_access(folder, person), *_kind(folder), *_room(folder)]
    secrets = [warn("disk.secrets", words, "see there") for words in exposed]
    return [*found, *(secrets or [ok("disk.secrets", "no key, password or secret that others may read")])]


def secrets_of(settings: AgentSettings) -> list[str]:
    """A message for each secret that other users may read, with what to do."""
    found = [
        *folder_of(settings.device_dir).exposed(),
        *fleet_secret.exposed(fleet_secret.secret_path(settings)),
    ]
    tls = settings.mqtt.tls
    for path in (settings.mqtt.password_file, None if tls is None else tls.key_file):
        if path is None or path.parent == folder_of(settings.device_dir).path:
            continue
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:  # reported by the checks of the configuration
            continue
        if mode & stat.S_IRWXO:
            found.append(f"{path} is a secret and everybody may read it (mode {mode:04o}): chmod o= it")
    return found


def _access(folder: FolderUsage, person: ServiceUser) -> list[Finding]:
    check, where = f"disk.{folder.key}", f"{folder.key} = {folder.path}"
    if folder.read_only:
        todo = "a disk that fails is remounted so: see dmesg; repair and mount it, then start again"
        return [fail(check, f"{where}: the file system is mounted read-only", todo, exit_codes.CONFIG)]
    if folder.there != folder.path:
        if folder.writable:
            return [ok(check, f"{where} is not there yet; {person.name} can make it in {folder.there}")]
        return [
            warn(
                check,
                f"{where} is not there, and {person.name} may not make it in {folder.there}",
                "systemd makes it when it starts the service; else: "
                f"install -d -m 700 -o {person.name} {folder.path}",
            )
        ]
    if not folder.writable:
        todo = f"chown -R {person.name}: {folder.path}; or name another folder in {folder.key}"
        words = f"{where}: {person.name} may not write there (mode {folder.mode:04o}, owner {folder.owner})"
        return [fail(check, words, todo, exit_codes.CONFIG)]
    if folder.key == "state_dir" and folder.mode & _OTHERS:
        todo = f"chmod 700 {folder.path}: sensor data and models lie there"
        return [warn(check, f"{where}: others may look in (mode {folder.mode:04o})", todo)]
    return [ok(check, f"{where} is {person.name}'s to write (mode {folder.mode:04o})")]


def _kind(folder: FolderUsage) -> list[Finding]:
    if folder.key != "state_dir":
        return []
    check, where = "disk.kind", f"{folder.path} lies on {folder.kind or 'an unknown file system'}"
    if folder.kind in _VOLATILE:
        todo = "choose a state_dir on a disk: updates, windows and the identity would be lost at a restart"
        return [fail(check, f"{where}: memory", todo, exit_codes.CONFIG)]
    if folder.kind in _NETWORK:
        todo = "choose a state_dir on a disk of this machine: SQLite's locks do not hold over a network"
        return [fail(check, where, todo, exit_codes.CONFIG)]
    if folder.kind in _WITHOUT_MODES:
        todo = "use ext4, btrfs or f2fs: here every user may read the device's key"
        return [warn(check, where, todo)]
    if folder.kind == "overlay":
        todo = "in a container: give state_dir a volume; on a read-only root: a partition of its own"
        return [warn(check, f"{where}, which a new container or a restart may drop", todo)]
    return [ok(check, where)]


def _room(folder: FolderUsage) -> list[Finding]:
    check = f"disk.space.{folder.key}"
    wanted = max(0, folder.budget_bytes - folder.used_bytes)
    words = f"{folder.free_bytes // MIB} MiB free, of which the agent may take {wanted // MIB} more"
    less = "store.budget_bytes, outbox.budget_bytes" if folder.key == "state_dir" else "blob_budget_bytes"
    if folder.free_bytes < _SPARE_BYTES:
        return [
            fail(check, words, f"free some room: below {_SPARE_BYTES // MIB} MiB nothing goes on for long")
        ]
    if 0 <= folder.free_inodes < _SPARE_INODES:
        return [warn(check, f"{folder.free_inodes} inodes free", "remove small files that nobody needs")]
    if folder.free_bytes < wanted:
        return [warn(check, words, f"free some room, or lower {less}")]
    return [ok(check, words)]
