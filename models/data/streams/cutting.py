"""Recordings -> windows, by the windower that runs on live streams."""

from collections.abc import Iterator

from models.data.labels.class_names import of_task
from models.data.streams.batches import LabelBatch, SampleBatch
from models.data.streams.recording import Recording, label_tracks
from models.data.streams.windows import Windower, Windows
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


def cut(task: Task, recording: Recording) -> Iterator[Windows]:
    """The windows of a recording in the order of time, in batches, also those without a label.

    Args:
        task: the grid; modalities that the recording lacks are masked.
        recording: streams named as in the task; others are left out.

    Raises:
        Misconfigured: a stream's number of channels is not the task's, or no stream is the task's.
    """
    names = [name for name in recording.streams if name in task.modality_names]
    if not names:
        raise Misconfigured(
            f"the recording has {', '.join(recording.streams)}, task {task.name!r} "
            f"{', '.join(task.modality_names)}"
        )
    windower, recording = Windower(task, names), of_task(task, recording)
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
        yield windows
