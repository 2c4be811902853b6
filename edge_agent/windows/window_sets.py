"""Converts recordings to window sets, by the same windower and quality meter as for live streams."""

from collections.abc import Iterator

import numpy as np

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality.meter import Quality, QualityMeter
from models.contract import WindowSet
from models.data import window_set
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording
from models.data.streams.windows import Windows, select
from protocol.tasks.task import Task


def to_window_set(windows: Windows, quality: Quality) -> WindowSet:
    """Windows with their quality as a window set, the models' input."""
    return WindowSet(
        windows.x,
        windows.present_BM,
        quality.quality_BM,
        windows.y_B,
        windows.targets,
        windows.context,
    )


def with_a_modality(windows: Windows, quality: Quality) -> tuple[Windows, Quality]:
    """The windows that have a modality after their backbones ran, and their quality; 1 where missing."""
    keep_B = np.atleast_1d(windows.present_BM.any(axis=1))
    quality_BM = np.where(windows.present_BM, quality.quality_BM, np.float32(1))
    return select(windows, keep_B), Quality(quality_BM[keep_B], quality.found_BMR[keep_B])


def windows_of_recording(
    task: Task, recording: Recording, quality: QualitySettings | None = None
) -> WindowSet:
    """All windows of a recording, including those without a label (-1).

    Args:
        task: defines the grid; modalities that the recording lacks are masked.
        recording: streams named as in the task; others are left out.
        quality: thresholds of the quality indicator.

    Raises:
        Misconfigured: a stream's number of channels differs from the task's, or no stream belongs to the
            task.
    """
    parts = [to_window_set(*judged) for judged in scored_windows(task, recording, quality)]
    return window_set.concat(parts) if parts else window_set.empty(task)


def scored_windows(
    task: Task, recording: Recording, quality: QualitySettings | None = None
) -> Iterator[tuple[Windows, Quality]]:
    """The windows of a recording in the order of time, in batches, with their quality and its reasons.

    Raises:
        Misconfigured: as :func:`windows_of_recording`.
    """
    meter = QualityMeter(task, quality)
    for windows in cut(task, recording):
        yield windows, meter.judge(windows)
