"""The parts of a study, collected from a package; a module may hold several related parts."""

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
        package: dotted name of their package.
        bench: the study's name, for errors.
    """

    package: str
    bench: str

    def _all(self) -> dict[str, Part[S, O]]:
        """Parts by name, in display order."""
        folder = import_module(self.package).__path__
        modules = [import_module(f"{self.package}.{module.name}") for module in iter_modules(folder)]
        parts = [part for module in modules for part in vars(module).values() if isinstance(part, Part)]
        return {part.name: part for part in sorted(parts, key=lambda part: (part.place, part.name))}

    def names(self) -> tuple[str, ...]:
        """Their names in display order."""
        return tuple(self._all())

    def part(self, name: str) -> Part[S, O]:
        """The part of that name.

        Raises:
            Misconfigured: there is none; the message lists those there are.
        """
        parts = self._all()
        if name not in parts:
            raise Misconfigured(f"no part {name!r} in bench {self.bench}; there are {', '.join(parts)}")
        return parts[name]

    def chosen(self, wanted: tuple[str, ...]) -> list[Part[S, O]]:
        """The named parts; without names, the parts that run by default."""
        if wanted:
            return [self.part(name) for name in dict.fromkeys(wanted)]
        return [part for part in self._all().values() if part.by_default]

    def goals(self) -> tuple[Goal, ...]:
        """Goals of all parts."""
        return tuple(goal for part in self._all().values() for goal in part.goals)
