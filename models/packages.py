"""Parts of networks, and methods, from Python packages: found, checked, and only then imported.

A task names packages with version and hash (``protocol.tasks.network.Package``). Who may import what is the
decision of a machine's owner: ``packages.allow`` of its configuration. Names, versions and hashes are read
from metadata and files, without an import, so daemons check a task, too (:func:`require`). Only a process
that was permitted to (:func:`permit`: the worker, export) imports: :func:`load`. Torch-free.

The hash covers what an import can reach: the bytes of the files that the distribution's ``RECORD`` lists
(without compiled copies, scripts and metadata, which differ between installations), its entry points, and
importable files that lie between those of the package.
"""

import hashlib
import importlib.util
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Any, Final

from protocol.errors import Misconfigured, Transient
from protocol.tasks.network import OWN, Package, is_own
from protocol.tasks.task import Task

ENCODERS: Final = "lichen.encoders"
NETWORKS: Final = "lichen.networks"
METHODS: Final = "lichen.methods"
GROUPS: Final = (ENCODERS, NETWORKS, METHODS)
MAX_FILES: Final = 4096
MAX_BYTES: Final = 256 * 1024 * 1024
_READ: Final = 1 << 20
_POINTS: Final = "entry_points.txt"


class ImportedBefore(Transient):
    """This process has imported other files of the package; a new process can do the work."""


@dataclass(frozen=True)
class Installed:
    """A distribution on this machine.

    Attributes:
        package: as a task names it.
        offers: entry points by group and name.
        files: those that the hash covers.
    """

    package: Package
    offers: dict[tuple[str, str], EntryPoint]
    files: tuple[Path, ...]


_permitted: set[str] = set()
"""Names of packages that this process may import: from its owner's configuration, never from a message."""
_imported: dict[str, str] = {}
"""Hash of each package that this process has imported, by its name."""


def permit(names: Collection[str]) -> None:
    """Set which packages this process may import, for one job: their files are read again."""
    _permitted.clear()
    _permitted.update(map(normal, names))
    _installed_now.cache_clear()


def permitted() -> tuple[str, ...]:
    """The packages that this process may import, sorted."""
    return tuple(sorted(_permitted))


def normal(name: str) -> str:
    """The name of a distribution as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(name: str) -> Installed:
    """The installed distribution of that name. Reads its files, and imports nothing.

    Raises:
        Misconfigured: it is not installed, or not so that its files can be listed; the message says which.
    """
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise Misconfigured(f"package {name} is not installed for this Python ({sys.executable})") from None
    where = f"package {name} {found.version}"
    try:
        files = dict(_covered(found, where))
        digest = _digest(files, where)
    except OSError as error:
        raise Misconfigured(f"{where}: {error.filename}: {error.strerror}; install it again") from None
    offers = {(p.group, p.name): p for p in found.entry_points if p.group in GROUPS}
    package = Package(name=found.metadata["Name"], version=found.version, sha256=digest)
    return Installed(package, offers, tuple(files.values()))


@cache
def _installed_now(name: str) -> Installed:
    return installed(name)


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


def require(task: Task, allow: Collection[str]) -> None:
    """Check that this machine has the packages of a task, and that its owner allows them. Imports nothing.

    Args:
        task: what is learned.
        allow: the names in ``packages.allow``.

    Raises:
        Misconfigured: it does not; the message names the package, and what to do.
    """
    _check(task, {normal(name) for name in allow}, installed)


def _check(task: Task, allowed: Collection[str], find: Callable[[str], Installed]) -> list[Installed]:
    found = []
    for package in task.packages:
        where = f"task {task.name!r} uses package {package.name} {package.version}"
        if normal(package.name) not in allowed:
            raise Misconfigured(
                f"{where}, which the configuration of this machine does not allow; "
                f'to allow it: [packages] allow = ["{package.name}"]'
            )
        found.append(_same(package, where, find))
    for key, group, name in wanted(task):
        offering = [one for one in found if (group, name) in one.offers]
        if len(offering) != 1:
            which = "none of its packages offers" if not offering else "several of its packages offer"
            raise Misconfigured(f"task {task.name!r}: {key}: {which} {name!r} as entry point of {group!r}")
    return found


def _same(package: Package, where: str, find: Callable[[str], Installed]) -> Installed:
    """The installed package, if it is that of the task."""
    try:
        found = find(package.name)
    except Misconfigured as error:
        raise Misconfigured(f"{where}: {error}") from None
    if found.package.version != package.version:
        raise Misconfigured(f"{where}; {found.package.version} is installed here")
    if found.package.sha256 != package.sha256:
        raise Misconfigured(
            f"{where} with files of sha256 {package.sha256[:12]}..., and those installed here have "
            f"{found.package.sha256[:12]}...: they come from another build, or were changed"
        )
    return found


def wanted(task: Task) -> Iterator[tuple[str, str, str]]:
    """The parts that a task takes from packages: the key that names it, the group and the entry point."""
    if is_own(task.network.kind):
        yield "network.kind", NETWORKS, str(task.network.kind).removeprefix(OWN)
    for modality, encoder in task.network.encoders.items():
        if is_own(encoder.kind):
            yield f"network.encoders.{modality}.kind", ENCODERS, str(encoder.kind).removeprefix(OWN)


def where_to_name(group: str, name: str) -> str:
    """The line of a task that names a part of a package."""
    if group == METHODS:
        return f'method = "{name}"'
    table = "[network]" if group == NETWORKS else "[network.encoders.MODALITY]"
    return f'{table} kind = "{OWN}{name}"'


def load(task: Task, group: str, kind: str) -> Any:
    """Import the object of an entry point, after all checks of :func:`require`.

    Args:
        task: names the packages.
        group: of the entry points.
        kind: ``own:NAME``.

    Raises:
        Misconfigured: this process may not import it, it is not that of the task, or it fails to import.
        ImportedBefore: this process has imported other files of it.
    """
    name, found = kind.removeprefix(OWN), _check(task, _permitted, _installed_now)
    ours = next(one for one in found if (group, name) in one.offers)
    point, package = ours.offers[group, name], ours.package
    where = f"package {package.name} {package.version}, entry point {name!r} ({point.value})"
    before = _imported.setdefault(normal(package.name), package.sha256)
    if before != package.sha256:
        raise ImportedBefore(f"{where}: this process has imported other files of it")
    _require_origin(point, ours, where)
    try:
        with _from_source():
            return point.load()
    except Exception as error:
        raise Misconfigured(f"{where} cannot be imported: {type(error).__name__}: {error}") from error


def _require_origin(point: EntryPoint, ours: Installed, where: str) -> None:
    """Check that Python would import the files that were checked, and no other module of that name."""
    top = point.module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None else spec.origin
    if origin is None or Path(origin).resolve() not in {path.resolve() for path in ours.files}:
        raise Misconfigured(
            f"{where}: Python would import {top!r} from {origin or 'no single file'}, which is not of this "
            "package; a package needs a module or a folder with __init__.py of its own"
        )


@contextmanager
def _from_source() -> Iterator[None]:
    """Compile what is imported from the files that were checked, not from compiled copies beside them."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = "/dev/null", True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
