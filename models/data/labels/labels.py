"""Label tracks of recordings: the class of ``label``, and further targets. Pure NumPy.

Each value holds until the next one. ``label`` is a class index, -1 for none; a further target's is a class
index or a number in its unit (the task says which), NaN for none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL

PREFIX: Final = "target"
"""Prefix of a further target's name: ``target/<name>/t`` in npz, column ``target.<name>`` in tables."""
_MAX_LABEL: Final = 2**31
_MAX_NAMES: Final = 1024


@dataclass(frozen=True, slots=True)
class TargetTrack:
    """Changes of one further target in the order of time: ``t`` (k,) s, ``values`` (k,), NaN for none."""

    t: NDArray[np.float64]
    values: NDArray[np.float64]


def classes_of(
    path: Path, t: NDArray[np.generic], label: NDArray[np.generic]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The track of ``label``, checked and in the order of time.

    Raises:
        Misconfigured: not two arrays of numbers of one length, or a number is no index of a class.
    """
    times, wide = _ordered(path, LABEL, t, label)
    wide = np.where(np.isnan(wide), -1.0, wide)
    if (np.abs(wide) > _MAX_LABEL).any():
        raise Misconfigured(f"recording {path}: label {np.abs(wide).max():g} is no index of a class")
    return times, wide.astype(np.int64)


def from_words(path: Path, name: str, words: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The cells of a label column: (n,) values, NaN for an empty cell, and the names that the values index.

    If every filled cell is a number, the values are those numbers and there are no names.

    Raises:
        Misconfigured: it has more names than a task may have.
    """
    index: dict[str, float] = {}
    for word in words:
        if word and word not in index:
            index[word] = float(len(index))
    values = np.array([index.get(word, np.nan) for word in words], np.float64)
    if (numbers := _numbers(index)) is None:
        if len(index) > _MAX_NAMES:
            raise Misconfigured(
                f"recording {path}: {name!r} names {len(index)} classes (at most {_MAX_NAMES}): notes?"
            )
        return values, tuple(index)
    there = ~np.isnan(values)
    values[there] = numbers[values[there].astype(np.int64)]
    return values, ()


def _numbers(words: Iterable[str]) -> NDArray[np.float64] | None:
    """None if one of them is no number."""
    try:
        return np.array([float(word) for word in words], np.float64)
    except ValueError:
        return None


def target(path: Path, name: str, t: NDArray[np.generic], values: NDArray[np.generic]) -> TargetTrack:
    """The track of a further target, checked and in the order of time.

    Raises:
        Misconfigured: not two arrays of numbers of one length.
    """
    return TargetTrack(*_ordered(path, f"{PREFIX}/{name}", t, values))


def changes(track: TargetTrack) -> TargetTrack:
    """The track without values that repeat the previous one."""
    keep = changed(track.values)
    return TargetTrack(track.t[keep], track.values[keep])


def changed(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where a value differs from the previous one; NaN equals NaN. The first always does."""
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    return np.concatenate([np.ones(min(1, len(values)), np.bool_), ~same])


def is_class(values: NDArray[np.float64], classes: int) -> NDArray[np.bool_]:
    """Where a value is a class index below ``classes``."""
    found: NDArray[np.bool_] = (values >= 0) & (values < classes) & (values == np.rint(values))
    return found


def require_name(path: Path, name: str) -> None:
    """Require that a further target can have this name.

    Raises:
        Misconfigured: it is empty, or the name of the first target.
    """
    if name in {"", LABEL}:
        raise Misconfigured(
            f"recording {path}: {PREFIX!r} is reserved for tracks of further targets and begins their name; "
            f"here it begins {name or 'none'!r} (the classes of the task are the track {LABEL!r})"
        )


def _ordered(
    path: Path, name: str, t: NDArray[np.generic], values: NDArray[np.generic]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and values as float64, by time; what is not finite is NaN."""
    if t.dtype.kind not in "fiu" or values.dtype.kind not in "fiu":
        raise Misconfigured(f"recording {path}: '{name}' holds {t.dtype}/{values.dtype}, not numbers")
    if t.ndim != 1 or t.shape != values.shape:
        raise Misconfigured(
            f"recording {path}: '{name}/t' {t.shape} and '{name}/values' {values.shape} should be (n,)"
        )
    times, wide = t.astype(np.float64), values.astype(np.float64)
    if not np.isfinite(times).all():
        raise Misconfigured(f"recording {path}: '{name}/t' holds a time that is not finite")
    order = np.argsort(times, kind="stable")
    return times[order], np.where(np.isfinite(wide), wide, np.nan)[order]
