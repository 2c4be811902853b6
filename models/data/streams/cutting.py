"""Recordings -> windows, by the windower that runs on live streams."""

from collections.abc import Iterator
from typing import Final

from models.data.labels.class_names import of_task
from models.data.streams.batches import LabelBatch, SampleBatch
from models.data.streams.recorded_stream import misfit_of, rows_of
from models.data.streams.recording import Recording, label_tracks
from models.data.streams.windows import Windower, Windows
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

_AT_ONCE: Final = 1 << 20
"""Values of frames, or of counts of texts, that are fed at once."""


def cut(task: Task, recording: Recording) -> Iterator[Windows]:
    """The windows of a recording in the order of time, in batches, also those without a label.

    Args:
        task: the grid; modalities that the recording lacks are masked.
        recording: streams named as in the task; others are left out.

    Raises:
        Misconfigured: a stream is not of the task's kind or size, or no stream is the task's.
    """
    names = [name for name in recording.streams if name in task.modality_names]
    if not names:
        raise Misconfigured(
            f"the recording has {', '.join(recording.streams)}, task {task.name!r} "
            f"{', '.join(task.modality_names)}"
        )
    for name in names:
        if words := misfit_of(task.modality(name), recording.streams[name]):
            raise Misconfigured(words)
    windower, recording = Windower(task, names), of_task(task, recording)
    for target, t, label in label_tracks(recording):
        windower.feed(LabelBatch(t, label, target), 0.0)
    for name in names:
        modality, stream = task.modality(name), recording.streams[name]
        # of frames the windower stores few: they are never all in memory as float32
        at_once = _AT_ONCE // modality.sample_values if modality.framed else len(stream.t)
        for begin in range(0, len(stream.t), max(1, at_once)):
            part = slice(begin, begin + max(1, at_once))
            windower.feed(SampleBatch(name, stream.t[part], rows_of(modality, stream, part)), 0.0)
    while (windows := windower.flush()) is not None:
        yield windows
