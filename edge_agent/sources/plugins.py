"""Kinds of sources from other packages, by entry point.

A package names them in its ``pyproject.toml``::

    [project.entry-points."lichen.sources"]
    radar = "lichen_radar:KIND"

``KIND`` is an :class:`edge_agent.sources.base.SourceKind`: a settings model and a factory, the same contract
as for the kinds of this folder. It is imported only if a ``[[source]]`` names it. Its faults are reported
with the package's name, and stop no other source.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import structlog
from pydantic import BaseModel

from edge_agent.sources.base import ChecksTask, FollowsTask, ReportsStatus, Source, SourceKind, channels_in
from models.data.streams.batches import Batch, LabelBatch, SampleBatch
from protocol.errors import LichenError, Misconfigured, Transient
from protocol.tasks.labelling import MAX_WINDOW_VALUES
from protocol.tasks.task import Task
from runtime.clock import Clock

T = TypeVar("T")
_log = structlog.get_logger(__name__)
GROUP: Final = "lichen.sources"
_MAX_CHANNELS: Final = MAX_WINDOW_VALUES
"""Values of a sample: a frame has as many as a window."""


def entry_points_by_kind() -> dict[str, EntryPoint]:
    """Entry points by the name of the kind; of two with one name the first, in the order of packages."""
    every = sorted(entry_points(group=GROUP), key=lambda point: (package(point), point.value))
    return {point.name: point for point in reversed(every)}


def package(point: EntryPoint) -> str:
    """The distribution that provides it, with its version."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def load(point: EntryPoint) -> SourceKind:
    """Import the object of an entry point.

    Raises:
        Misconfigured: it cannot be imported, or is not a ``SourceKind``; names the package and the entry
            point.
    """
    origin = f"{point.name!r} comes from {package(point)} ({point.value})"
    try:
        kind = point.load()
    except Exception as error:
        raise Misconfigured(f"{origin}, which cannot be loaded: {type(error).__name__}: {error}") from error
    settings = getattr(kind, "settings", None)
    if not isinstance(kind, SourceKind) or not (
        isinstance(settings, type) and issubclass(settings, BaseModel)
    ):
        raise Misconfigured(
            f"{origin}, which is a {type(kind).__name__}, not an edge_agent.sources.base.SourceKind"
        )
    return SourceKind(kind.settings, _guarded(kind.make, origin))


def _guarded(make: Callable[..., Source], origin: str) -> Callable[..., Source]:
    def make_guarded(settings: Any, known: Sequence[str] | None, clock: Clock) -> Source:
        try:
            source = make(settings, known, clock)
            return GuardedSource(source, origin)
        except LichenError:
            raise
        except Exception as error:
            raise Misconfigured(f"{origin}, which failed: {type(error).__name__}: {error}") from error

    return make_guarded


class GuardedSource:
    """A source of another package: its exceptions stop only this source, and its batches are checked."""

    def __init__(self, source: Source, origin: str) -> None:
        self._source = source
        self._origin = origin
        self.name = str(source.name)
        self.channels = _channels(source.channels, origin)
        self._refused = 0

    @property
    def one_reader(self) -> bool:
        """See :func:`edge_agent.sources.shared.takes_one_reader`."""
        return bool(getattr(self._source, "one_reader", not isinstance(self._source, FollowsTask)))

    @property
    def state(self) -> str:
        """See :class:`edge_agent.sources.base.ReportsStatus`."""
        return self._call(lambda source: str(source.state) if isinstance(source, ReportsStatus) else "", "")

    @property
    def counters(self) -> Mapping[str, float]:
        """See :class:`edge_agent.sources.base.ReportsStatus`; also counts invalid batches."""
        nothing: dict[str, float] = {}
        own = self._call(_counts, nothing)
        return own | {"malformed_batches": self._refused}

    def doubts(self, task: Task) -> list[str]:
        """See :class:`edge_agent.sources.base.ChecksTask`."""
        return self._call(
            lambda source: list(map(str, source.doubts(task))) if isinstance(source, ChecksTask) else [], []
        )

    def follow(self, task: Task) -> None:
        """See :class:`edge_agent.sources.base.FollowsTask`."""
        self._call(lambda source: source.follow(task) if isinstance(source, FollowsTask) else None, None)
        self.channels = self.channels_in(task)

    def channels_in(self, task: Task) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.SizedByTask`; what is not valid counts as not said."""
        return self._call(lambda source: _channels(channels_in(source, task), self._origin), self.channels)

    def _call(self, question: Callable[[Source], T], instead: T) -> T:
        """The result of a call; if it fails, a default and a log line."""
        try:
            return question(self._source)
        except Exception as error:  # noqa: BLE001 - a fault of a plugin must not end the agent; it is logged
            _log.warning("source_status_failed", kind=self._origin, error=f"{type(error).__name__}: {error}")
            return instead

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield its batches, without the invalid ones."""
        try:
            stream: Any = self._source.samples()
            async with aclosing(stream):
                async for batch in stream:
                    if self._is_batch(batch):
                        yield batch
                    else:
                        self._refused += 1
        except (OSError, Transient):
            raise
        except Exception as error:  # noqa: BLE001 - a fault of a plugin must not end the agent; it is counted
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        raise Transient(f"kind {self._origin} failed: {type(error).__name__}: {error}") from error

    def _is_batch(self, batch: object) -> bool:
        """Whether it is a batch as defined in :mod:`models.data.streams.batches`."""
        if isinstance(batch, LabelBatch):
            return _is_times(batch.t) and np.shape(batch.label) == batch.t.shape
        if not isinstance(batch, SampleBatch) or not _is_times(batch.t):
            return False
        shape = (len(batch.t), self.channels.get(batch.modality, -1))
        return isinstance(batch.values, np.ndarray) and batch.values.shape == shape


def _counts(source: Source) -> dict[str, float]:
    counted = source.counters if isinstance(source, ReportsStatus) else {}
    return {str(name): float(value) for name, value in counted.items()}


def _is_times(t: object) -> bool:
    return isinstance(t, np.ndarray) and t.ndim == 1 and t.dtype == np.float64


def _channels(channels: Mapping[str, int], origin: str) -> dict[str, int]:
    """Channels by modality.

    Raises:
        Misconfigured: they are invalid.
    """
    pairs: Iterable[tuple[Any, Any]] = channels.items()
    found_ = dict(pairs)
    good = all(isinstance(k, str) and type(v) is int and 1 <= v <= _MAX_CHANNELS for k, v in found_.items())
    if not good:
        raise Misconfigured(f"{origin}: its channels are {found_!r}, not numbers of channels by modality")
    return found_
