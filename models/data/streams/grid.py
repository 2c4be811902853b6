"""Samples -> values on the grid of windows, and of the contexts that end with them. Pure NumPy.

Shapes: B windows, M task modalities, C channels, T grid points of a window, L of a context.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.contract import Context
from models.data.streams.tracks.frames import FrameTrack
from models.data.streams.tracks.track import Track
from protocol.tasks.task import Modality, Task


@dataclass(frozen=True)
class Values:
    """The fields of ``Windows`` without labels; without ``context_s`` the context is the window."""

    x: dict[str, NDArray[np.float32]]
    covered: dict[str, NDArray[np.bool_]]
    present_BM: NDArray[np.bool_]
    context: Context


def values_at(task: Task, tracks: Mapping[str, Track | FrameTrack], start_B: NDArray[np.float64]) -> Values:
    """The windows that begin at these stream seconds; a modality without a track is missing."""
    x, covered, whole, present, points = {}, {}, {}, [], []
    for modality in task.modalities:
        name, samples = modality.name, task.samples(modality.name)
        x_BCL, covered_BL = _resampled(task, modality, tracks.get(name), start_B)
        covered[name] = covered_BL[:, -samples:]
        present.append(covered[name].mean(axis=1) >= task.window.min_coverage)
        points.append(points_of(covered_BL, samples, present[-1]))
        clear(x_BCL, points[-1])
        whole[name], x[name] = x_BCL, np.ascontiguousarray(x_BCL[..., -samples:])
    return Values(x, covered, np.stack(present, axis=1), Context(whole, np.stack(points, axis=1)))


def points_of(covered_BL: NDArray[np.bool_], window: int, present_B: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``points_B``: how many of the L points count, back from the window's end to the first gap before it.

    Args:
        covered_BL: which points lie between samples.
        window: T. Its own points count, covered or not.
        present_B: whether the modality is present in the window; 0 points if it is not.
    """
    before = covered_BL.shape[1] - window
    gap_BL = ~covered_BL[:, :before][:, ::-1]
    run_B = np.where(gap_BL.any(axis=1), gap_BL.argmax(axis=1), before) if before else 0
    return np.where(present_B, window + run_B, 0).astype(np.int64)


def clear(x_BCL: NDArray[np.float32], points_B: NDArray[np.int64]) -> None:
    """Zero the points that do not count, in place: those before a gap, and those never covered."""
    length = x_BCL.shape[-1]
    out_BL = np.arange(length) < length - points_B[:, None]
    x_BCL.transpose(0, 2, 1)[out_BL] = 0.0


def before_s(task: Task, name: str) -> float:
    """Seconds from the first point of a context of that modality to the first of its window."""
    return (task.context_samples(name) - task.samples(name)) / task.modality(name).rate_hz


def _resampled(
    task: Task, modality: Modality, track: Track | FrameTrack | None, start_B: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """``x_BCL`` and ``covered_BL``; the grid of a stream's window continues into its past."""
    length, samples = task.context_samples(modality.name), task.samples(modality.name)
    if track is None:
        shape = (len(start_B), modality.channels, length)
        return np.zeros(shape, np.float32), np.zeros((len(start_B), length), np.bool_)
    if isinstance(track, FrameTrack):
        return track.newest(start_B)
    return track.resample(start_B[:, None] + np.arange(samples - length, samples) / modality.rate_hz)
