"""The benchmarks that there are: every module of this folder that has a ``BENCH``."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import lichen_lab.benchmarks
from lichen_lab.benchmarks.result import Bench
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from lichen_lab.benchmarks.study.study import Study

_TOOLS = frozenset({"cli", "registry", "result"})


def names() -> tuple[str, ...]:
    """Their names, sorted. Modules that begin with ``_`` are shared pieces."""
    found = (module.name for module in iter_modules(lichen_lab.benchmarks.__path__))
    return tuple(sorted(name for name in found if name not in _TOOLS and not name.startswith("_")))


def bench(name: str) -> Bench:
    """The benchmark of that name.

    Raises:
        Misconfigured: there is none; the message lists those there are.
    """
    if name not in names():
        raise Misconfigured(f"no benchmark {name!r}; there are {', '.join(names())}, and `all`")
    made: Bench = import_module(f"lichen_lab.benchmarks.{name}").BENCH
    return made


def study(name: str) -> "Study[Any, Any]":
    """The benchmark of that name, which is made of parts: its package has a ``STUDY``."""
    made: Study[Any, Any] = import_module(f"lichen_lab.benchmarks.{name}").STUDY
    return made
