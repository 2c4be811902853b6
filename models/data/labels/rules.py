"""Rules for a window's label (``window.label_rule``): the changes of one target, and four rules. Pure NumPy.

Shapes: k changes, B windows.
"""

import math
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from models.data.labels.labels import changed, is_class
from models.data.streams.batches import LabelBatch
from models.data.streams.tracks.track import ABSURD, increases
from protocol.tasks.labelling import Labelling, LabelRule

MAX_CHANGES: Final = 65_536
"""Limit of one target's labels while windows wait to close: labels may go on when sensors are silent."""
_JUST_S: Final = 1e-9
"""A label that changes at a window's edge does not change within the window."""
_WHOLE: Final = Labelling()


class Labels:
    """The labels of one target; each holds until the next one.

    Args:
        classes: of a classification; 0: the target is a number.
        rule: the task's ``label_rule``.
    """

    def __init__(self, classes: int, rule: Labelling = _WHOLE) -> None:
        self._classes = classes
        self._rule = rule
        self.clear()

    def clear(self) -> None:
        """Drop all labels."""
        self._t = np.empty(0, np.float64)
        self._value = np.empty(0, np.float64)  # NaN: none

    @property
    def mark(self) -> float:
        """Time of the newest change."""
        return float(self._t[-1]) if len(self._t) else -math.inf

    def add(self, batch: LabelBatch) -> None:
        """Add changes, in any order; a class that the task lacks, or an absurd number, counts as none.

        Beyond :data:`MAX_CHANGES` the oldest are dropped: windows of that time have no label then.
        """
        good = np.isfinite(batch.t)
        given = batch.label.astype(np.float64)
        known = is_class(given, self._classes) if self._classes else np.abs(given) < ABSURD
        t = np.concatenate([self._t, batch.t[good]])
        value = np.concatenate([self._value, np.where(known, given, np.nan)[good]])
        if not increases(t):
            order = np.argsort(t, kind="stable")
            t, value = t[order], value[order]
        change = np.flatnonzero(changed(value))[-MAX_CHANGES:]
        self._t, self._value = t[change], value[change]

    def forget(self, before: float) -> None:
        """Drop changes that no window from ``before`` on needs; the one in force is kept."""
        first = max(0, int(np.searchsorted(self._t, before, side="right")) - 1)
        self._t, self._value = self._t[first:], self._value[first:]

    def of(self, start_B: NDArray[np.float64], end_B: NDArray[np.float64]) -> NDArray[np.float64]:
        """``y_B``: the label of each window [start, end) by the rule, NaN if there is none."""
        y_B = np.full(len(start_B), np.nan)
        if not len(self._t):
            return y_B
        if self._rule.label_rule == "last":
            return self._at(end_B - _JUST_S, "left")
        if self._rule.label_rule == "center":
            return self._at((start_B + end_B) / 2, "right")
        first = np.searchsorted(self._t, start_B + _JUST_S, side="right") - 1
        last = np.searchsorted(self._t, end_B - _JUST_S, side="left") - 1
        same = (first >= 0) & (first == last)
        y_B[same] = self._value[first[same]]
        for b in np.flatnonzero(~same & (last >= 0)):
            part = slice(max(0, int(first[b])), int(last[b]) + 1)
            y_B[b] = self._of_several(part, float(start_B[b]), float(end_B[b]))
        return y_B

    def mixed(self, start_B: NDArray[np.float64], end_B: NDArray[np.float64]) -> NDArray[np.bool_]:
        """``mixed_B``: the windows in which more than one label holds; "none" counts as a label."""
        first = np.searchsorted(self._t, start_B + _JUST_S, side="right")
        last = np.searchsorted(self._t, end_B - _JUST_S, side="left")
        found: NDArray[np.bool_] = last > first
        return found

    def _at(self, t_B: NDArray[np.float64], side: Literal["left", "right"]) -> NDArray[np.float64]:
        """The label in force at these times."""
        at = np.searchsorted(self._t, t_B, side=side) - 1
        return np.where(at >= 0, self._value[np.maximum(at, 0)], np.nan)

    def _of_several(self, part: slice, start: float, end: float) -> float:
        """The label of windows in which it changes."""
        begins, value = np.maximum(self._t[part], start), self._value[part]
        held = np.maximum(np.append(begins[1:], end) - begins, 0.0)
        return _RULES[self._rule.label_rule](held, value, self._wanted_s(end - start), self._classes)

    def _wanted_s(self, length_s: float) -> float:
        """Seconds of a window that must be labelled."""
        share = self._rule.min_share if self._rule.label_rule == "majority" else 1.0
        return share * length_s - _JUST_S


def _whole(held: NDArray[np.float64], value: NDArray[np.float64], wanted_s: float, classes: int) -> float:
    """No class, as there are several; of a number the mean, if the window is labelled throughout."""
    return math.nan if classes else _mean(held, value, wanted_s)


def _majority(held: NDArray[np.float64], value: NDArray[np.float64], wanted_s: float, classes: int) -> float:
    """The class that holds longest, if alone and long enough; a number's mean over labelled time."""
    if not classes:
        return _mean(held, value, wanted_s)
    known = ~np.isnan(value)
    seconds_K = np.bincount(value[known].astype(np.int64), held[known], classes)
    longest = int(seconds_K.argmax())
    alone = (seconds_K >= seconds_K[longest] - _JUST_S).sum() == 1
    return float(longest) if alone and seconds_K[longest] >= wanted_s else math.nan


def _mean(held: NDArray[np.float64], value: NDArray[np.float64], wanted_s: float) -> float:
    """Mean over labelled time, if that is long enough."""
    some = (held > 0) & ~np.isnan(value)
    if held[some].sum() < max(wanted_s, _JUST_S):
        return math.nan
    return float(np.average(value[some], weights=held[some]))


_RULES: Final[dict[LabelRule, Callable[..., float]]] = {"whole": _whole, "majority": _majority}
"""For windows in which the label changes; the other rules read it at one time."""
