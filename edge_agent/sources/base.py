"""What a source is, and the registry that finds sources by their kind.

A new kind is a new module in this folder that ends with ``REGISTRY.add(...)``; nothing else names it.
Times are seconds as float64 on one axis for all sources of a device; values are float32 in the task's unit.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from models.streams.batches import Batch
from protocol.errors import Misconfigured
from protocol.task import Task
from runtime.clock import Clock
from runtime.settings import check_table


class Source(Protocol):
    """A stream of batches.

    Batches that belong together (the same span of time in several modalities) are yielded without waiting in
    between. ``samples`` may be called again after it raised ``OSError`` or ``Transient``.
    """

    name: str
    channels: dict[str, int]
    """What it delivers: channels by task modality."""

    def samples(self) -> AsyncIterator[Batch]:
        """Yield batches until the stream ends.

        Raises:
            OSError: the hardware or file went away; the agent waits and calls again.
            Transient: the same, in words.
        """


@runtime_checkable
class Doubtful(Protocol):
    """A source that can be compared with a task before it runs."""

    def doubts(self, task: Task) -> list[str]:
        """What hardly fits, in words; it is said and not refused."""


@dataclass(frozen=True)
class Kind:
    """One kind of source: its settings model, and how to make one from checked settings."""

    settings: type[BaseModel]
    make: Callable[[Any, Sequence[str] | None, Clock], Source]
    """(settings, the task's modality names or None while no task is known, clock) -> source."""


class Registry:
    """Kinds of sources by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def add(self, name: str, kind: Kind) -> None:
        """Make a kind known."""
        self._kinds[name] = kind

    def kinds(self) -> dict[str, Kind]:
        """All kinds, after every module of this folder was imported."""
        package = import_module("edge_agent.sources")
        for module in iter_modules(package.__path__):
            import_module(f"edge_agent.sources.{module.name}")
        return dict(sorted(self._kinds.items()))


REGISTRY = Registry()


def open_source(
    table: dict[str, Any], where: str, folder: Path, modalities: Sequence[str] | None, clock: Clock
) -> Source:
    """Make the source that a ``[[source]]`` table of the configuration describes.

    Args:
        table: the table, ``kind`` included.
        where: its path for messages, as ``source[0]``.
        folder: where relative paths begin: the folder of the configuration.
        modalities: the task's modality names; None while no task is known.
        clock: paces the source.

    Raises:
        Misconfigured: unknown kind, unknown or wrong key, a missing or broken file, an unknown modality.
    """
    kinds = REGISTRY.kinds()
    name = table.get("kind")
    if not isinstance(name, str) or name not in kinds:
        raise Misconfigured(f"{where}.kind: {name!r} is not a kind of source; known: {', '.join(kinds)}")
    kind = kinds[name]
    options = {key: value for key, value in table.items() if key != "kind"}
    settings = check_table(kind.settings, options, where, folder)
    try:
        return kind.make(settings, modalities, clock)
    except Misconfigured as error:
        raise Misconfigured(f"{where}: {error}") from None
