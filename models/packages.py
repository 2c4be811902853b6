"""Parts of networks, and methods, from Python packages: found, checked, and only then imported.

A task names packages with version and hash (``protocol.tasks.network.Package``). Who may import what is the
decision of a machine's owner: ``packages.allow`` of its configuration. Names, versions and hashes are read
from metadata and files, without an import, so daemons check a task, too (:func:`require`). Only a process
that was permitted to (:func:`permit`: the worker, export) imports: :func:`load`. Torch-free.
"""

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from models.package_files import InstalledPackage, find_package, normal
from protocol.errors import Misconfigured, Transient
from protocol.tasks.network import OWN, Package, is_own
from protocol.tasks.task import Task

ENCODERS: Final = "lichen.encoders"
NETWORKS: Final = "lichen.networks"
METHODS: Final = "lichen.methods"
PROVIDERS: Final = "lichen.providers"
"""Of execution providers, which no task names: ``[[infer.packages]]`` of a device does."""
GROUPS: Final = (ENCODERS, NETWORKS, METHODS, PROVIDERS)
OWN_METHOD: Final = "own-"
"""Begins the name of a method from a package: names of methods have no colon."""


class ImportedBefore(Transient):
    """This process has imported other files of the package; a new process can do the work."""


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


@cache
def _installed_now(name: str) -> InstalledPackage:
    return find_package(name)


def require(task: Task, allow: Collection[str]) -> None:
    """Check that this machine has the packages of a task, and that its owner allows them. Imports nothing.

    Args:
        task: what is learned.
        allow: the names in ``packages.allow``.

    Raises:
        Misconfigured: it does not; the message names the package, and what to do.
    """
    _check(task, {normal(name) for name in allow}, find_package)


def _check(
    task: Task, allowed: Collection[str], find: Callable[[str], InstalledPackage]
) -> list[InstalledPackage]:
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


def _same(package: Package, where: str, find: Callable[[str], InstalledPackage]) -> InstalledPackage:
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


def require_installed(package: Package, where: str) -> InstalledPackage:
    """The installed package, if it has this version and hash. Imports nothing.

    Args:
        package: as a configuration names it.
        where: begins the message of an error.

    Raises:
        Misconfigured: it is not installed, or another one is.
    """
    return _same(package, where, find_package)


def load_point(package: Package, group: str, name: str, where: str) -> Any:
    """Import the object of an entry point, after the check of :func:`require_installed`.

    Args:
        package: that the owner of this machine allows, by version and hash.
        group: of the entry point.
        name: of the entry point.
        where: begins the message of an error.

    Raises:
        Misconfigured: the package is another one, has no such entry point, or fails to import.
        ImportedBefore: this process has imported other files of it.
    """
    found = require_installed(package, where)
    if (group, name) not in found.offers:
        raise Misconfigured(f"{where}: it has no entry point {name!r} of {group!r}")
    return _imported_point([found], group, name)[1]


def wanted(task: Task) -> Iterator[tuple[str, str, str]]:
    """The parts that a task takes from packages: the key that names it, the group and the entry point."""
    if is_own_method(task):
        yield "method", METHODS, task.method.removeprefix(OWN_METHOD)
    if is_own(task.network.kind):
        yield "network.kind", NETWORKS, str(task.network.kind).removeprefix(OWN)
    for modality, encoder in task.network.encoders.items():
        if is_own(encoder.kind):
            yield f"network.encoders.{modality}.kind", ENCODERS, str(encoder.kind).removeprefix(OWN)


def is_own_method(task: Task) -> bool:
    """Whether the task's method is of a package."""
    return task.method.startswith(OWN_METHOD)


def where_to_name(group: str, name: str) -> str:
    """The line of a task that names a part of a package; of a provider, the table of agent.toml."""
    if group == PROVIDERS:
        return f"provider {name}: in agent.toml the table is [[infer.packages]]"
    if group == METHODS:
        return f'method = "{OWN_METHOD}{name}"'
    table = "[network]" if group == NETWORKS else "[network.encoders.MODALITY]"
    return f'{table} kind = "{OWN}{name}"'


def require_permitted(task: Task) -> None:
    """:func:`require`, for what this process may import; files are read once after each :func:`permit`."""
    _check(task, _permitted, _installed_now)


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
    found = _check(task, _permitted, _installed_now)
    return _imported_point(found, group, kind.removeprefix(OWN))[1]


def load_method(task: Task, allow: Collection[str]) -> tuple[str, Any]:
    """Import the method of a task's package: daemons do, so it must not import torch.

    Args:
        task: its method begins with :data:`OWN_METHOD`.
        allow: the names in ``packages.allow``.

    Returns:
        The module of the entry point, and its object.

    Raises:
        Misconfigured: as for :func:`load`; or it imports torch.
        ImportedBefore: as for :func:`load`.
    """
    found = _check(task, {normal(name) for name in allow}, find_package)
    torch = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        return _imported_point(found, METHODS, task.method.removeprefix(OWN_METHOD))
    finally:
        del sys.modules["torch"]
        if torch is not None:
            sys.modules["torch"] = torch


def _imported_point(found: list[InstalledPackage], group: str, name: str) -> tuple[str, Any]:
    ours = next(one for one in found if (group, name) in one.offers)
    point, package = ours.offers[group, name], ours.package
    where = f"package {package.name} {package.version}, entry point {name!r} ({point.value})"
    before = _imported.setdefault(normal(package.name), package.sha256)
    if before != package.sha256:
        raise ImportedBefore(f"{where}: this process has imported other files of it")
    _require_origin(point, ours, where)
    try:
        with from_source():
            return point.module, point.load()
    except Exception as error:
        raise Misconfigured(f"{where} cannot be imported: {type(error).__name__}: {error}") from error


def _require_origin(point: EntryPoint, ours: InstalledPackage, where: str) -> None:
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
def from_source() -> Iterator[None]:
    """Compile what is imported from the files that were checked, not from compiled copies beside them."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = "/dev/null", True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before
