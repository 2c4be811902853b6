"""The files of an installed Python package, and their hash; nothing of it is imported.

The hash covers what an import can reach: the bytes of the files that the distribution's ``RECORD`` lists
(without compiled copies, scripts and metadata, which differ between installations), its entry points, and
importable files that lie between those of the package.
"""

import csv
import hashlib
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

from protocol.errors import Misconfigured
from protocol.tasks.network import Package

MAX_FILES: Final = 4096
MAX_BYTES: Final = 256 * 1024 * 1024
_READ: Final = 1 << 20
_POINTS: Final = "entry_points.txt"
_OURS: Final = "lichen."
"""Begins the groups of entry points that count."""


@dataclass(frozen=True)
class InstalledPackage:
    """A distribution on this machine.

    Attributes:
        package: as a task names it.
        offers: entry points by group and name.
        files: those that the hash covers.
    """

    package: Package
    offers: dict[tuple[str, str], EntryPoint]
    files: tuple[Path, ...]


def normal(name: str) -> str:
    """The name of a distribution as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_package(name: str) -> InstalledPackage:
    """The installed distribution of that name. Reads its files, and imports nothing.

    Raises:
        Misconfigured: it is not installed, or not so that its files can be listed; the message says which.
    """
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise Misconfigured(f"package {name} is not installed for this Python ({sys.executable})") from None
    about = found.metadata  # read once: each access parses the file
    where = f"package {name} {about['Version']}"
    try:
        files = dict(_covered(found, where))
        digest = _digest(files, where)
        package = Package(name=about["Name"], version=about["Version"], sha256=digest)
        offers = {(p.group, p.name): p for p in found.entry_points if p.group.startswith(_OURS)}
    except OSError as error:
        raise Misconfigured(f"{where}: {error.filename}: {error.strerror}; install it again") from None
    except (ValueError, TypeError, csv.Error) as error:  # no UTF-8, a name that no task may have, columns
        raise Misconfigured(f"{where}: its metadata cannot be read: {error}"[:500]) from None
    return InstalledPackage(package, offers, tuple(files.values()))


def _covered(found: Distribution, where: str) -> Iterator[tuple[str, Path]]:
    """The files of the hash by name, relative to the folder that the distribution is installed in."""
    listed = found.files
    if found.read_text("RECORD") is None or not listed:
        raise Misconfigured(f"{where} has no RECORD of its files: install it from a wheel, with pip")
    names = {str(PurePosixPath(one)) for one in listed}
    own = {name for name in names if _counts(PurePosixPath(name))}
    if any(name.endswith(".pth") for name in own):
        raise Misconfigured(
            f"{where} is installed in editable mode (or adds paths by a .pth file), so the files that would "
            "be imported are not listed: install it from a wheel (pip wheel --no-deps, pip install)"
        )
    root = Path(str(found.locate_file("")))
    for folder in {PurePosixPath(name).parent for name in own}:
        if folder.name and not folder.name.endswith(".dist-info"):
            own |= {f"{folder}/{name}" for name in _importable(root / folder)}
    for name in own:
        yield name, root / name


def _counts(name: PurePosixPath) -> bool:
    first, *_ = name.parts
    if first in {"..", "/"} or "__pycache__" in name.parts:
        return False
    return name.name == _POINTS if first.endswith(".dist-info") else True


def _importable(folder: Path) -> Iterator[str]:
    """Names of files in a folder that an import could take, listed or not, and of packages in it."""
    for path in folder.iterdir():
        if path.name.endswith(tuple(all_suffixes())):
            yield path.name
        elif path.name != "__pycache__" and (path / "__init__.py").exists():
            yield f"{path.name}/__init__.py"


def _digest(files: dict[str, Path], where: str) -> str:
    if len(files) > MAX_FILES:
        raise Misconfigured(f"{where} has {len(files)} files; at most {MAX_FILES} are checked")
    whole, left = hashlib.sha256(), MAX_BYTES
    for name in sorted(files):
        about = files[name].stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > left:
            raise Misconfigured(f"{where}: {name} is no file, or all files have over {MAX_BYTES} bytes")
        left -= about.st_size
        one = hashlib.sha256()
        with files[name].open("rb") as file:
            while data := file.read(_READ):
                one.update(data)
        whole.update(f"{name}\0{one.hexdigest()}\n".encode())
    return whole.hexdigest()
