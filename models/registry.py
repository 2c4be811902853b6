"""Registry of methods: every folder of ``models/methods`` whose ``__init__`` has a ``METHOD``. Torch-free.

Nothing else names a method, so a new method is a new folder without other changes; or one in a package
(:func:`admit`).
"""

import difflib
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from models import methods as _folder
from models import packages
from models.spec import MethodSpec
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping


_outside: "dict[str, MethodSpec[Any]]" = {}
"""Methods of packages that this process has admitted, by name."""


@cache
def methods() -> "Mapping[str, MethodSpec[Any]]":
    """All methods by name, sorted; those of packages last.

    Raises:
        TypeError: a folder's METHOD is no MethodSpec, or has another name than its folder (a bug).
    """
    specs: dict[str, MethodSpec[Any]] = {}
    for entry in sorted(iter_modules(_folder.__path__), key=lambda entry: entry.name):
        if not entry.ispkg:
            continue
        spec = getattr(import_module(f"{_folder.__name__}.{entry.name}"), "METHOD", None)
        if spec is None:
            continue
        if not isinstance(spec, MethodSpec) or spec.name != entry.name:
            raise TypeError(f"models/methods/{entry.name}: METHOD must be a MethodSpec named {entry.name!r}")
        specs[spec.name] = spec
    return MappingProxyType(specs | _outside)


def admit(task: Task, allow: Collection[str]) -> None:
    """If a task's method is of a package, check and import that, and add the method to :func:`methods`.

    Args:
        task: what is learned.
        allow: the names in ``packages.allow`` of this machine.

    Raises:
        Misconfigured: as for :func:`models.packages.require`; or the method cannot be imported, needs torch
            for that, or is none; or this process has imported another build of it.
    """
    if not packages.is_own_method(task):
        return
    try:
        home, spec = packages.load_method(task, allow)
    except packages.ImportedBefore as error:
        raise Misconfigured(f"task {task.name!r}: {error}; restart this process") from None
    where = f"task key 'method': {task.method!r} ({home})"
    if not isinstance(spec, MethodSpec) or spec.name != task.method:
        raise Misconfigured(f"{where} is no models.spec.MethodSpec of that name")
    for half in ("client", "server"):
        if find_spec(f"{home}.{half}") is None:
            raise Misconfigured(f"{where} has no module {home}.{half}")
    _outside[spec.name] = replace(spec, home=home)
    methods.cache_clear()


def method(name: str) -> MethodSpec[Any]:
    """The method of that name.

    Raises:
        Misconfigured: unknown; the message names the known ones.
    """
    specs = methods()
    if name in specs:
        return specs[name]
    near = difflib.get_close_matches(name, specs, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Misconfigured(
        f"task key 'method': {name!r} is no method of this lichen (known: {', '.join(specs)}){hint}"
    )
