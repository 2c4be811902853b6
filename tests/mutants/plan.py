"""What is mutated and by which tests it is judged (pyproject.toml); known survivors (accepted.toml)."""

import hashlib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant, mutants

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.toml")


@dataclass(frozen=True)
class Group:
    """Decision modules of one subject, and the test files that judge them, as paths from the root."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


def groups(root: Path = ROOT) -> list[Group]:
    """All groups of pyproject.toml.

    Raises:
        ValueError: If a path is not there, or a module is in two groups.
    """
    configured = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["lichen"]["mutants"]
    found: list[Group] = []
    owners: dict[str, str] = {}
    for name, group in configured.items():
        modules, tests = (_paths(root, name, group[key]) for key in ("modules", "tests"))
        for module in modules:
            if other := owners.get(module):
                raise ValueError(
                    f"pyproject.toml: {module} is in [tool.lichen.mutants.{other}] and in {name}"
                )
            owners[module] = name
        found.append(Group(name, modules, tests))
    return found


def _paths(root: Path, group: str, patterns: Iterable[str]) -> tuple[str, ...]:
    paths: list[str] = []
    for pattern in patterns:
        here = sorted(str(path.relative_to(root)) for path in root.glob(pattern))
        if not here:
            raise ValueError(
                f"pyproject.toml: [tool.lichen.mutants.{group}] names {pattern}, and no such file is there"
            )
        paths += here
    return tuple(paths)


def sample(root: Path, chosen: Iterable[Group], seed: int) -> list[tuple[Group, Mutant]]:
    """All mutants, in an order that the seed gives: a sample is the first of them.

    A mutant's place in the order depends on the seed and its own name alone: a larger sample begins with
    the smaller one, and a change elsewhere in the code leaves the sample as it is.
    """
    everything = [
        (group, mutant)
        for group in chosen
        for module in group.modules
        for mutant in mutants(module, (root / module).read_text())
    ]
    everything.sort(key=lambda one: hashlib.sha256(f"{seed} {one[1].key}".encode()).digest())
    return everything


def accepted(file: Path = ACCEPTED) -> dict[str, str]:
    """The reason of each known survivor, by the mutant's key.

    Raises:
        ValueError: If one has no reason.
    """
    reasons: dict[str, str] = {}
    for one in tomllib.loads(file.read_text()).get("survivor", []):
        number = one.get("number", 0)
        key = f"{one['module']} {one['function']} | {one['before']} -> {one['after']} #{number}"
        if not one["reason"].strip():
            raise ValueError(f"{file.name}: no reason for {key}")
        reasons[key] = one["reason"]
    return reasons
