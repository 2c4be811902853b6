"""The store of a device that learns nothing: its windows are counted, and none is kept.

Nothing of such a device reads a stored window: a model is measured on windows that the inference keeps in
memory (``edge_agent.inference.serving.variants.benchmark``).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from edge_agent.windows.rows import RowKind, WindowRow, rows_of
from edge_agent.windows.statistics import StoreSnapshot, StoreStatistics, snapshot_of
from models.contract import WindowSet
from models.data.labels.targets import keys_of
from protocol.errors import Transient
from protocol.tasks.task import Task

COUNTED: Final = 2048
"""The newest so many windows are counted: what the device is like now."""


class WindowSink(Protocol):
    """Where windows go; :class:`edge_agent.windows.store.WindowSink` keeps them on disk."""

    trouble: tuple[float, str] | None
    """Since when (Unix seconds) and why the disk takes nothing; None while it does."""
    disabled_reason: str
    """Why no window is kept, in words; empty where they are."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def pending(self) -> int:
        """Windows that wait for a commit."""

    @property
    def is_due(self) -> bool:
        """Whether so many wait that they should be committed at once."""

    def use(self, task: Task) -> None:
        """Another task on the same grid."""

    def add(self, windows: WindowSet) -> None:
        """Take windows. Touches no disk."""

    def commit(self) -> bool:
        """Write what waits. False when the disk refuses."""

    def recent(
        self, limit: int, *, labelled: bool = True, wanted: Callable[[RowKind], bool] | None = None
    ) -> WindowSet:
        """The newest windows, oldest first.

        Raises:
            Transient: they cannot be read now, or none are kept.
        """

    def snapshot(self) -> StoreSnapshot:
        """Counts."""

    def close(self) -> None:
        """Commit and close."""


class CountingStore:
    """Counts the newest windows, and keeps the values of none.

    Args:
        path: where a store would lie.
        task: of the windows.
        why: it keeps nothing, in words.
    """

    pending = 0
    is_due = False

    def __init__(self, path: Path, task: Task, why: str) -> None:
        self._path = path
        self._task = task
        self.trouble: tuple[float, str] | None = None
        self.disabled_reason = why
        self._rows: deque[WindowRow] = deque()
        self._tally = self._empty()

    @property
    def path(self) -> Path:
        """The file that is not there."""
        return self._path

    def _empty(self) -> StoreStatistics:
        return StoreStatistics(len(self._task.modalities), len(self._task.labels), keys_of(self._task))

    def use(self, task: Task) -> None:
        """Another task on the same grid: what was counted counts for its targets."""
        self._task, self._tally = task, self._empty()
        for row in self._rows:
            self._tally.take(row)

    def add(self, windows: WindowSet) -> None:
        """Count windows; the oldest are forgotten."""
        for row in rows_of(self._task, windows):
            bare = replace(row, x=b"", context=None)
            self._rows.append(bare)
            self._tally.take(bare)
            if len(self._rows) > COUNTED:
                old = self._rows.popleft()
                self._tally.add(old.y, old.present, old.quality, 0, old.targets, sign=-1)

    def commit(self) -> bool:
        """Nothing waits."""
        return True

    def recent(
        self,
        limit: int,  # noqa: ARG002 - as a store is asked
        *,
        labelled: bool = True,  # noqa: ARG002 - likewise
        wanted: Callable[[RowKind], bool] | None = None,  # noqa: ARG002 - likewise
    ) -> WindowSet:
        """There are none.

        Raises:
            Transient: always.
        """
        raise Transient(f"no window is kept here: {self.disabled_reason}")

    def snapshot(self) -> StoreSnapshot:
        """Counts; in bytes nothing."""
        return replace(snapshot_of(self._tally, self._task, {}, 0), bytes=0)

    def close(self) -> None:
        """Nothing is open."""
