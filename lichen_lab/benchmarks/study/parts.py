"""The parts of a study, one module each, found by folder; a module has a ``PART``."""

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.study.part import Part
from lichen_lab.benchmarks.study.run_spec import O, S
from protocol.errors import Misconfigured


@dataclass(frozen=True)
class Parts(Generic[S, O]):
    """All parts of one study.

    Attributes:
        package: that they lie in, as it is imported.
        bench: the study's name, for errors.
    """

    package: str
    bench: str

    def names(self) -> tuple[str, ...]:
        """Their names, in the order in which they are shown."""
        folder = import_module(self.package).__path__
        found = {module.name: self._part(module.name) for module in iter_modules(folder)}
        return tuple(sorted(found, key=lambda name: (found[name].place, name)))

    def _part(self, name: str) -> Part[S, O]:
        made: Part[S, O] = import_module(f"{self.package}.{name}").PART
        return made

    def part(self, name: str) -> Part[S, O]:
        """The part of that name.

        Raises:
            Misconfigured: there is none; the message lists those there are.
        """
        names = self.names()
        if name not in names:
            raise Misconfigured(f"no part {name!r} in bench {self.bench}; there are {', '.join(names)}")
        return self._part(name)

    def chosen(self, wanted: tuple[str, ...]) -> list[Part[S, O]]:
        """These parts, or all that run without being asked."""
        if wanted:
            return [self.part(name) for name in dict.fromkeys(wanted)]
        return [found for found in map(self.part, self.names()) if found.by_default]

    def goals(self) -> tuple[Goal, ...]:
        """Of all of them."""
        return tuple(goal for name in self.names() for goal in self.part(name).goals)
