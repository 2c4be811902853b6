"""Compiled models (engines) on this device's disk: a folder for each, complete or not there.

A name is the hash of all that an engine depends on, so a change of any of it never finds an old engine. A
provider writes into a temporary folder; :meth:`EngineCache.keep` syncs its files, notes their hashes in
``engine.json`` and renames it. What a power cut or a failing disk leaves is found by these hashes, and
removed.

Engines are code of the accelerator: the folder belongs to the agent's user, and nobody else may read or write
it. Synchronous; called in threads, one call at a time.
"""

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from protocol.errors import Misconfigured, Reason, Refused
from runtime.storage.disk import DISK
from runtime.storage.files import (
    disk_errors,
    make_folder,
    remove_tree,
    rename,
    sync_folder,
    write_atomic,
)

_log = structlog.get_logger(__name__)
ABOUT: Final = "engine.json"
PART: Final = ".part"
_FORMAT: Final = 1
_READ: Final = 1 << 20
_MAX_FILES: Final = 256
_PRIVATE: Final = 0o700


@dataclass(frozen=True)
class EngineKey:
    """All that an engine depends on.

    Attributes:
        model: SHA-256 of the ONNX model.
        provider: name of the provider, or of a package's entry point.
        package: name, version and hash of the package; empty if ONNX Runtime has the provider.
        device: the accelerator.
        versions: of ONNX Runtime, driver and compiler, by name.
        options: of the session, as pairs.
        threads: of ONNX Runtime.
        max_rows: the largest batch.
    """

    model: str
    provider: str
    package: str
    device: str
    versions: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    threads: int
    max_rows: int

    @property
    def name(self) -> str:
        """Of its folder."""
        said = json.dumps([_FORMAT, asdict(self)], sort_keys=True).encode()
        return f"{self.model[:12]}-{hashlib.sha256(said).hexdigest()[:32]}"


@dataclass(frozen=True)
class CompiledModel:
    """A complete engine.

    Attributes:
        folder: of its files.
        size: bytes of all files.
        compile_s: seconds that the provider took.
    """

    folder: Path
    size: int
    compile_s: float


class EngineCache:
    """The engines of one agent.

    Args:
        folder: ``cache_dir/engines``; made when first needed.
        budget_bytes: of all engines.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self._budget = budget_bytes
        self.removed = 0
        """Engines that were removed for lack of room, or because they were damaged."""

    def find(self, key: EngineKey) -> CompiledModel | None:
        """The complete engine of a key; a damaged one is removed.

        Raises:
            Misconfigured: the folder is open to other users.
            Transient: the disk fails.
        """
        folder = self.folder / key.name
        if not folder.is_dir():
            return None
        self._require_private()
        with disk_errors(folder):
            found, why = _read(folder, key)
            if found is not None:
                os.utime(folder / ABOUT)  # the time of its last use
                return found
        _log.warning("engine_removed", folder=str(folder), why=why)
        self._drop(folder)
        return None

    def begin(self, key: EngineKey) -> Path:
        """An empty folder for a provider to write into; what an earlier attempt left is removed.

        Raises:
            Misconfigured: the folder is open to other users, or not ours.
            Transient: the disk is full or fails.
        """
        self._require_private()
        for left in self.folder.glob(f"*{PART}"):
            remove_tree(left)
        part = self.folder / f"{key.name}{PART}"
        with disk_errors(part):
            make_folder(part)
            part.chmod(_PRIVATE)
        return part

    def keep(self, part: Path, key: EngineKey, compile_s: float) -> CompiledModel:
        """Make what a provider wrote durable, and give it its name; the oldest engines make room.

        Raises:
            Refused: it has a link or a device file, or is larger than all engines may be.
            Misconfigured, Transient: it cannot be written; nothing is kept.
        """
        folder = part.with_name(key.name)
        with disk_errors(part):
            files = {name: _hashed(part / name) for name in _names(part)}
            about = {
                "format": _FORMAT,
                "key": asdict(key),
                "files": {name: {"size": n, "sha256": digest} for name, (n, digest) in files.items()},
                "compile_s": round(compile_s, 3),
            }
            said = json.dumps(about, indent=1).encode()
            size = sum(n for n, _ in files.values())
            if size + len(said) > self._budget:
                words = f"the compiled model has {size} bytes, infer.engine_bytes is {self._budget}"
                raise Refused(Reason.TOO_LARGE, words)
            self._make_room(size + len(said), folder)
            for name in files:
                DISK.get().sync(part / name)
            for inner in {(part / name).parent for name in files} - {part}:
                sync_folder(inner)
            write_atomic(part / ABOUT, said)
            remove_tree(folder)
            rename(part, folder)
            sync_folder(self.folder)
        return CompiledModel(folder, size, compile_s)

    def abandon(self, part: Path) -> None:
        """Remove what a provider that failed has written."""
        remove_tree(part)

    def engines(self) -> list[tuple[Path, int]]:
        """Folder and bytes of each engine, the one that was not used for longest first."""
        found = []
        for folder in self.folder.glob("*/"):
            if folder.name.endswith(PART):
                continue
            found.append((_used(folder), folder, size_of(folder)))
        return [(folder, size) for _, folder, size in sorted(found)]

    def _make_room(self, size: int, coming: Path) -> None:
        here = [(folder, n) for folder, n in self.engines() if folder != coming]
        total = sum(n for _, n in here) + size
        for folder, n in here:
            if total <= self._budget:
                return
            _log.info("engine_removed", folder=str(folder), why="room for a newer one is needed")
            self._drop(folder)
            total -= n

    def _drop(self, folder: Path) -> None:
        remove_tree(folder)
        self.removed += 1

    def _require_private(self) -> None:
        make_folder(self.folder)
        try:
            about = self.folder.lstat()
            if about.st_uid == os.geteuid() and stat.S_ISDIR(about.st_mode):
                if stat.S_IMODE(about.st_mode) != _PRIVATE:
                    self.folder.chmod(_PRIVATE)
                return
        except OSError as error:
            raise Misconfigured(f"{self.folder}: {error.strerror}") from None
        raise Misconfigured(
            f"{self.folder} belongs to another user (number {about.st_uid}), who may change what runs here: "
            "remove it, or set another cache_dir"
        )


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            about = path.lstat()
        except OSError:
            continue
        total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total


def _used(folder: Path) -> float:
    try:
        return (folder / ABOUT).stat().st_mtime
    except OSError:
        return 0.0


def _read(folder: Path, key: EngineKey) -> tuple[CompiledModel | None, str]:
    """The engine, or why it is none."""
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_bytes())
        files = {str(name): (int(one["size"]), str(one["sha256"])) for name, one in about["files"].items()}
        compile_s = float(about["compile_s"])
        if about["format"] != _FORMAT or about["key"] != json.loads(json.dumps(asdict(key))):
            return None, f"its {ABOUT} is of another engine"
        wrong = _difference(folder, files)
    except FileNotFoundError:
        return None, f"it has no {ABOUT}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"its {ABOUT} cannot be read: {error}"
    if wrong:
        return None, wrong
    return CompiledModel(folder, sum(size for size, _ in files.values()), compile_s), ""


def _difference(folder: Path, files: dict[str, tuple[int, str]]) -> str:
    """How the files differ from those that a provider wrote; empty if they do not."""
    try:
        if sorted(files) != sorted(_names(folder)):
            return "files were added or are missing"
    except Refused as error:
        return error.detail
    wrong = next((name for name, wanted in files.items() if _hashed(folder / name) != wanted), "")
    return f"{wrong} is not what the provider wrote" if wrong else ""


def _names(folder: Path) -> list[str]:
    """Relative names of the files of an engine. Raises Refused for anything but files and folders."""
    inner = sorted(folder.rglob("*"))
    modes = {path: path.lstat().st_mode for path in inner[: _MAX_FILES + 1]}
    stray = [path for path, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]
    if stray or len(inner) > _MAX_FILES:
        where = stray[0] if stray else folder
        raise Refused(
            Reason.MALFORMED, f"{where}: a compiled model is at most {_MAX_FILES} files, and no links"
        )
    files = [str(path.relative_to(folder)) for path, mode in modes.items() if stat.S_ISREG(mode)]
    return [name for name in files if name != ABOUT]


def _hashed(path: Path) -> tuple[int, str]:
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(_READ):
            found.update(data)
            size += len(data)
    return size, found.hexdigest()
