"""Interface of a source, and the registry of the kinds of sources.

A new kind is a new module in this folder that ends with ``REGISTRY.add(...)``; nothing else names it. Kinds
of other packages come by entry point (:mod:`edge_agent.sources.plugins`). Times are seconds as float64 on one
axis for all sources of a device; values are float32 in the task's unit.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from models.data.streams.batches import Batch
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.clock import Clock


class Source(Protocol):
    """A stream of batches.

    Batches that belong together (the same span of time in several modalities) are yielded without waiting in
    between. ``samples`` may be called again after it raised ``OSError`` or ``Transient``.
    """

    name: str

    @property
    def channels(self) -> dict[str, int]:
        """Values of a sample by task modality.

        Channels; of images and vectors all values of a frame (C * T), of texts the buckets.
        """

    def samples(self) -> AsyncIterator[Batch]:
        """Yield batches until the stream ends.

        Raises:
            OSError: the hardware or file is gone; the agent waits and calls again.
            Transient: the same, with a reason.
        """


@runtime_checkable
class ChecksTask(Protocol):
    """A source that can be compared with a task before it runs."""

    def doubts(self, task: Task) -> list[str]:
        """Mismatches with the task; they are reported and do not refuse the source."""


@runtime_checkable
class ReportsStatus(Protocol):
    """A source that reports its status, for ``status`` and ``lichen agent sensors test``."""

    @property
    def state(self) -> str:
        """A text: the present activity, or the thing waited for."""

    @property
    def counters(self) -> Mapping[str, float]:
        """Problems since the start, by name; a name ends with its unit if it has one."""


def source_status(source: Source) -> dict[str, Any]:
    """The status of a source: its state, and the counters that are not 0; empty if it reports none."""
    if not isinstance(source, ReportsStatus):
        return {}
    counted = {name: round(float(value), 3) for name, value in source.counters.items() if value}
    return {"state": source.state, **counted}


@runtime_checkable
class FollowsTask(Protocol):
    """A source that needs the task, for example the names of its labels."""

    def follow(self, task: Task) -> None:
        """Use this task from now on."""


@runtime_checkable
class DescribesMedia(Protocol):
    """A source of images or sound, for ``lichen agent sensors test``."""

    @property
    def media(self) -> Literal["image", "sound"]:
        """What it delivers."""

    @property
    def size(self) -> str:
        """The form of what it delivers, in words."""


@runtime_checkable
class SizedByTask(Protocol):
    """A source whose samples are as large as the task says, for example texts, counted in its buckets."""

    def channels_in(self, task: Task) -> dict[str, int]:
        """:attr:`Source.channels` under this task."""


def channels_in(source: Source, task: Task) -> dict[str, int]:
    """Values of a sample by modality that the source delivers under this task."""
    return source.channels_in(task) if isinstance(source, SizedByTask) else source.channels


@dataclass(frozen=True)
class SourceKind:
    """One kind of source: its settings model, and a factory for checked settings."""

    settings: type[BaseModel]
    make: Callable[[Any, Sequence[str] | None, Clock], Source]
    """(settings, the task's modality names or None while no task is known, clock) -> source."""


class Registry:
    """Kinds of sources by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, SourceKind] = {}

    def add(self, name: str, kind: SourceKind) -> None:
        """Register a kind."""
        self._kinds[name] = kind

    def kinds(self) -> dict[str, SourceKind]:
        """All kinds, after importing every module of this folder."""
        package = import_module("edge_agent.sources")
        for module in iter_modules(package.__path__):
            import_module(f"edge_agent.sources.{module.name}")
        return dict(sorted(self._kinds.items()))


REGISTRY = Registry()


def require_known(modalities: Iterable[str], known: Sequence[str] | None, key: str = "modalities.{}") -> None:
    """Check that the task has these modalities.

    Args:
        modalities: as the table of the source names them.
        known: the task's; None while no task is known, which accepts any.
        key: of the table, where a modality is named.

    Raises:
        Misconfigured: names the key, and a similar name.
    """
    for name in modalities:
        if known is not None and name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Misconfigured(
                f"{key.format(name)}: the task has no such modality; it has {', '.join(known)}{hint}"
            )


_SAME_UNIT = {"m/s^2": "m/s2", "dps": "deg/s", "lux": "lx", "C": "degC", "°C": "degC", "µT": "uT"}


def unit_doubts(name: str, units: Mapping[str, str], task: Task) -> list[str]:
    """Messages about modalities in a unit other than the task's; ``units``: by modality, empty if unknown."""
    words = []
    for modality, unit in units.items():
        if modality not in task.modality_names or not unit:
            continue
        wanted = task.modality(modality).unit
        if wanted != "1" and _SAME_UNIT.get(wanted, wanted) != _SAME_UNIT.get(unit, unit):
            words.append(
                f"{name}: modality {modality!r} comes in {unit!r}, the task says {wanted!r}: set unit, or "
                "factor and unit, under this modality"
            )
    return words
