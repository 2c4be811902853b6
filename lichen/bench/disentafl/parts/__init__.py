"""The parts of the study, one module each, found by folder; a module has a ``PART``."""

from importlib import import_module
from pkgutil import iter_modules

from lichen.bench.disentafl.part import Part
from protocol.errors import Misconfigured


def names() -> tuple[str, ...]:
    """Their names, in the order in which they are shown."""
    found = {module.name: _part(module.name) for module in iter_modules(__path__)}
    return tuple(sorted(found, key=lambda name: (found[name].place, name)))


def _part(name: str) -> Part:
    made: Part = import_module(f"{__name__}.{name}").PART
    return made


def part(name: str) -> Part:
    """The part of that name.

    Raises:
        Misconfigured: there is none; the message lists those there are.
    """
    if name not in names():
        raise Misconfigured(f"no part {name!r} in bench disentafl; there are {', '.join(names())}")
    return _part(name)


def chosen(wanted: tuple[str, ...]) -> list[Part]:
    """These parts, or all that run without being asked."""
    if wanted:
        return [part(name) for name in dict.fromkeys(wanted)]
    return [found for found in map(part, names()) if found.by_default]
