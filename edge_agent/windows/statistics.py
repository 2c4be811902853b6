"""Statistics of the window store."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.rows import ONLY_OTHERS, UNLABELLED, RowKind, WindowRow, labelled_for
from models.data.holdout import HoldoutRule
from protocol.tasks.task import Task

ROW_BYTES: Final = 96
"""Overhead of a row beyond its values: key, index, masks, page slack."""


@dataclass
class StoreStatistics:
    """Sums over the stored windows.

    K classes of ``label``; column K is unlabelled, column K + 1 labelled for further targets alone. ``keys``:
    of those targets (``rows.keys_of``). ``rule``: which windows are held back from learning.
    """

    modalities: int
    classes: int
    keys: Mapping[str, str] = field(default_factory=dict)
    rule: HoldoutRule = field(default_factory=HoldoutRule)
    count_K: NDArray[np.int64] = field(init=False)
    present_MK: NDArray[np.int64] = field(init=False)
    quality_M: NDArray[np.float64] = field(init=False)
    kinds: Counter[RowKind] = field(init=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.count_K = np.zeros(self.classes + 2, np.int64)
        self.present_MK = np.zeros((self.modalities, self.classes + 2), np.int64)
        self.quality_M = np.zeros(self.modalities)
        self.kinds = Counter()

    def copy(self) -> "StoreStatistics":
        """An independent copy."""
        other = StoreStatistics(self.modalities, self.classes, self.keys, self.rule, size=self.size)
        other.count_K, other.present_MK = self.count_K.copy(), self.present_MK.copy()
        other.quality_M, other.kinds = self.quality_M.copy(), self.kinds.copy()
        return other

    def take(self, row: WindowRow) -> None:
        """Add a window."""
        self.add(row.y, row.present, row.quality, row.values_bytes, row.targets, row.start)

    def add(  # noqa: PLR0917 - the columns of a row
        self,
        y: int,
        present: bytes,
        quality: bytes,
        x_bytes: int,
        targets: str | None,
        start: float | None,
        *,
        sign: int = 1,
    ) -> None:
        """Add a window, or subtract it with ``sign`` -1.

        Raises:
            ValueError: the row is damaged.
        """
        if len(present) != self.modalities or y >= self.classes:
            raise ValueError(f"a window of class {y} with {len(present)} modalities is not of this task")
        k = y if y >= 0 else self.classes + (y == ONLY_OTHERS)
        present_M = np.frombuffer(present, np.bool_)
        kind = RowKind(present, labelled_for(y, targets, self.keys), self.rule.side(start))
        self.kinds[kind] += sign
        if not self.kinds[kind]:
            del self.kinds[kind]
        self.count_K[k] += sign
        self.present_MK[:, k] += sign * present_M
        self.quality_M += sign * np.where(present_M, np.frombuffer(quality, np.float32), 0.0)
        self.size += sign * (x_bytes + len(present) + len(quality) + len(targets or "") + ROW_BYTES)

    def most_frequent(self) -> int:
        """``y`` of the most frequent kind of row."""
        k = int(self.count_K.argmax())
        return k if k < self.classes else UNLABELLED if k == self.classes else ONLY_OTHERS


@dataclass(frozen=True)
class StoreSnapshot:
    """The content of the store in numbers, for the state message.

    ``labelled``: windows with a class of ``label``. ``kinds``: windows by present modalities, labelled
    targets, and what they are used for. ``dropped``: by class of ``label``; -1: unlabelled, -2: labelled for
    further targets alone.
    ``counts``: per modality, present labelled windows per class. ``missing`` and ``quality``: per modality,
    share of windows without it, and mean quality of those with it.
    """

    labelled: int
    total: int
    bytes: int
    counts: dict[str, tuple[int, ...]]
    missing: dict[str, float]
    quality: dict[str, float]
    dropped: dict[int, int]
    lost: int
    """Windows that never reached the disk because it was full."""
    kinds: Mapping[RowKind, int] = field(default_factory=dict)


def snapshot_of(tally: StoreStatistics, task: Task, dropped: Mapping[int, int], lost: int) -> StoreSnapshot:
    """The snapshot of a store, from its tally, its drops by class and its windows lost to a full disk."""
    total, windows_M = int(tally.count_K.sum()), tally.present_MK.sum(axis=1)
    names = task.modality_names
    return StoreSnapshot(
        labelled=int(tally.count_K[:-2].sum()),
        total=total,
        bytes=tally.size,
        counts={n: tuple(int(c) for c in tally.present_MK[m, :-2]) for m, n in enumerate(names)},
        missing={n: float(1 - windows_M[m] / total) if total else 1.0 for m, n in enumerate(names)},
        quality={n: _mean(tally.quality_M[m], windows_M[m]) for m, n in enumerate(names)},
        dropped=dict(dropped),
        lost=lost,
        kinds=tally.kinds,
    )


def _mean(total: float, n: int) -> float:
    return float(min(1.0, max(0.0, total / n))) if n else 1.0
