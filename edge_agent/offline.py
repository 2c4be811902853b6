"""Recordings -> window sets, by the same windower and quality meter as on live streams."""

from collections.abc import Iterator

from edge_agent.quality import Quality, QualityMeter, QualitySettings
from edge_agent.sources.base import LabelBatch, SampleBatch
from edge_agent.sources.recording import Recording, label_tracks
from edge_agent.windows import Windower, Windows
from models import windowset
from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.task import Task


def as_window_set(windows: Windows, quality: Quality) -> WindowSet:
    """Windows with their quality as what the models take."""
    return WindowSet(windows.x, windows.present_BM, quality.quality_BM, windows.y_B, windows.targets)


def windows_of(task: Task, recording: Recording, quality: QualitySettings | None = None) -> WindowSet:
    """All windows of a recording, those without a label included (-1).

    Args:
        task: the grid; modalities that the recording lacks are masked.
        recording: streams named as in the task; others are left out.
        quality: thresholds of the quality indicator.

    Raises:
        Misconfigured: a stream's number of channels is not the task's, or no stream is the task's.
    """
    parts = [as_window_set(*judged) for judged in judged_windows(task, recording, quality)]
    return windowset.concat(parts) if parts else windowset.empty(task)


def judged_windows(
    task: Task, recording: Recording, quality: QualitySettings | None = None
) -> Iterator[tuple[Windows, Quality]]:
    """The windows of a recording in the order of time, in batches, with their quality and its reasons.

    Raises:
        Misconfigured: as :func:`windows_of`.
    """
    names = [name for name in recording.streams if name in task.modality_names]
    if not names:
        raise Misconfigured(
            f"the recording has {', '.join(recording.streams)}, task {task.name!r} "
            f"{', '.join(task.modality_names)}"
        )
    windower, meter = Windower(task, names), QualityMeter(task, quality)
    for target, t, label in label_tracks(recording):
        windower.feed(LabelBatch(t, label, target), 0.0)
    for name in names:
        stream, channels = recording.streams[name], task.modality(name).channels
        if stream.values.shape[1] != channels:
            raise Misconfigured(
                f"modality {name!r}: {stream.values.shape[1]} channels, the task says {channels}"
            )
        windower.feed(SampleBatch(name, stream.t, stream.values), 0.0)
    while (windows := windower.flush()) is not None:
        yield windows, meter.judge(windows)
