"""Registry of methods: every folder of ``models/methods`` whose ``__init__`` has a ``METHOD``. Torch-free.

Nothing else names a method, so a new method is a new folder without other changes.
"""

import difflib
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from models import methods as _folder
from models.spec import MethodSpec
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def methods() -> "Mapping[str, MethodSpec[Any]]":
    """All methods by name, sorted.

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
    return MappingProxyType(specs)


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
