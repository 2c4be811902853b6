"""The store of a device that does not learn: it counts windows and keeps no values.

Such a device never reads a stored window: a model is benchmarked on windows that the inference keeps in
memory (``edge_agent.inference.serving.variants.benchmark``).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.rows import RowKind, WindowRow, rows_of
from edge_agent.windows.statistics import StoreSnapshot, StoreStatistics, snapshot_of
from models.contract import WindowSet
from models.data.labels.targets import keys_of
from protocol.errors import Transient
from protocol.tasks.task import Task

COUNTED: Final = 2048
"""The newest windows that are counted: they show the present state of the device."""


class CountingStore:
    """Counts the newest windows, without their values; in the place of a ``WindowStore``.

    Args:
        path: where a store would be.
        task: of the windows.
        why: the reason for storing nothing.
    """

    pending = 0
    is_due = False

    def __init__(self, path: Path, task: Task, why: str) -> None:
        self.path = path
        """The file; it does not exist."""
        self._task = task
        self.trouble: tuple[float, str] | None = None
        self.disabled_reason = why
        self._rows: deque[WindowRow] = deque()
        self._tally = self._empty()

    def _empty(self) -> StoreStatistics:
        return StoreStatistics(len(self._task.modalities), len(self._task.labels), keys_of(self._task))

    def use(self, task: Task) -> None:
        """Switch to another task on the same grid: counted windows count for its targets."""
        self._task, self._tally = task, self._empty()
        for row in self._rows:
            self._tally.take(row)

    def add(self, windows: WindowSet, start_B: NDArray[np.float64] | None = None) -> None:
        """Count windows; the oldest are dropped."""
        for row in rows_of(self._task, windows, start_B):
            bare = replace(row, x=b"", context=None)
            self._rows.append(bare)
            self._tally.take(bare)
            if len(self._rows) > COUNTED:
                old = self._rows.popleft()
                self._tally.add(old.y, old.present, old.quality, 0, old.targets, old.start, sign=-1)

    def commit(self) -> bool:
        """Does nothing."""
        return True

    def recent(
        self,
        limit: int,  # noqa: ARG002 - as WindowStore
        *,
        labelled: bool = True,  # noqa: ARG002 - likewise
        wanted: Callable[[RowKind], bool] | None = None,  # noqa: ARG002 - likewise
    ) -> WindowSet:
        """Not available.

        Raises:
            Transient: always.
        """
        raise Transient(f"this device stores no windows: {self.disabled_reason}")

    def snapshot(self) -> StoreSnapshot:
        """The counts; the size is 0 bytes."""
        return replace(snapshot_of(self._tally, self._task, {}, 0), bytes=0)

    def close(self) -> None:
        """Does nothing."""
