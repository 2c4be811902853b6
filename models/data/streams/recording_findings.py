"""Findings in a recording, compared with a task: one list for every command and for the agent. Pure.

Errors make data useless without notice (a misspelt modality, classes that the task does not have, times in
milliseconds); warnings may be intended.

Shapes: n samples, C channels, k changes of a label, B windows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.labels import class_names
from models.data.labels.labels import is_class
from models.data.labels.rules import Labels
from models.data.streams.batches import LabelBatch
from models.data.streams.recording import Recording
from models.data.streams.stream_findings import ERROR, WARNING, StreamFinding, has_odd_times, of_stream
from protocol.tasks.task import LABEL, Target, Task

__all__ = ["ERROR", "WARNING", "StreamFinding", "mixed_windows", "of_recording"]
MANY: Final = 0.3
"""A share of windows with several labels that is worth a finding."""
_MOST_WINDOWS: Final = 1_000_000
_SHOWN: Final = 8


@dataclass(frozen=True)
class Mixed:
    """Windows, and those of them in which more than one label holds."""

    windows: int
    mixed: int


def of_recording(task: Task, recording: Recording) -> tuple[StreamFinding, ...]:
    """All findings, targets and labels first, then by modality.

    Args:
        task: on windows.
        recording: as read.
    """
    return (
        *_of_targets(task, recording),
        *_of_names(task, recording),
        *_of_modalities(task, recording),
        *(
            finding
            for name, stream in recording.streams.items()
            if name in task.modality_names
            for finding in of_stream(task, name, stream)
        ),
        *_of_windows(task, recording),
    )


def _of_targets(task: Task, recording: Recording) -> Iterator[StreamFinding]:
    for name, track in recording.targets.items():
        if name not in task.target_names:
            listed = ", ".join(target.name for target in task.targets) or "none"
            near = get_close_matches(name, [target.name for target in task.targets], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            words = f"target {name!r} is not in task {task.name!r} (further targets: {listed}); its labels "
            yield StreamFinding("unknown-target", ERROR if near else WARNING, f"{words}are not used{hint}")
            continue
        target = task.target(name)
        if target.kind == "generation":
            words = f"target {name!r} is generated and takes no labels; they are not used"
            yield StreamFinding("unknown-target", WARNING, words)
        elif name not in recording.names:
            yield from _foreign(task, target, track.values[~np.isnan(track.values)])
    if LABEL not in recording.names:
        yield from _foreign(task, task.target(LABEL), recording.label.astype(np.float64))


def _foreign(task: Task, target: Target, values_k: NDArray[np.float64]) -> Iterator[StreamFinding]:
    """Labels that are no class of a classification."""
    count = len(target.labels)
    found = np.unique(values_k)
    foreign = found[~is_class(found, count) & (found != -1)]
    if target.kind != "classification" or not len(foreign):
        return
    given = found[found != -1]
    listed = ", ".join(f"{value:g}" for value in foreign[:_SHOWN])
    of, range_ = f"task {task.name!r}", f"0 to {count - 1} (-1: none)"
    what = f"label {listed}: no class of {of}, which has {range_}"
    if target.name != LABEL:
        what = f"target {target.name!r}: label {listed}: no class of it, which has {range_}"
    if given.min() >= 1 and given.max() == count:
        words = f"{what}: labels go from {given.min():g} to {count} and the task counts from 0: subtract 1"
        yield StreamFinding("shifted-labels", ERROR, words)
    else:
        yield StreamFinding("unknown-class", ERROR, f"{what}; what they cover counts as without a label")


def _of_names(task: Task, recording: Recording) -> Iterator[StreamFinding]:
    for name, strange in class_names.unknown(task, recording).items():
        labels, prefix = task.target(name).labels, "" if name == LABEL else f"target {name!r}: "
        if not labels:
            words = f"{prefix}{strange[0]!r} is not a number; what it covers counts as without a label"
            yield StreamFinding("unknown-class", ERROR, words)
            continue
        for word in strange[:_SHOWN]:
            alike = [one for one in labels if one.casefold() == word.casefold()]
            near = alike or get_close_matches(word, labels, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = f"(it has {', '.join(labels[:_SHOWN])})"
            words = (
                f"{prefix}label {word!r} is no class of task {task.name!r} {known}; what it covers counts "
            )
            yield StreamFinding("unknown-class", ERROR, f"{words}as without a label{hint}")


def _of_modalities(task: Task, recording: Recording) -> Iterator[StreamFinding]:
    absent = [name for name in task.modality_names if name not in recording.streams]
    for name in recording.streams:
        if name in task.modality_names:
            continue
        alike = [one for one in absent if one.casefold() == name.casefold()]
        near = alike or get_close_matches(name, absent, 1)
        words = f"modality {name!r} is not in task {task.name!r} and is not used"
        if near:
            words += f"; the recording has no {near[0]!r}: is it that?"
        yield StreamFinding("unknown-modality", ERROR if near else WARNING, words, name)
    for name in absent:
        words = f"modality {name!r} of task {task.name!r} is not in it: its windows have none"
        yield StreamFinding("missing-modality", WARNING, words, name)


def _of_windows(task: Task, recording: Recording) -> Iterator[StreamFinding]:
    """Windows longer than the activities, if the task wants one label for a whole window."""
    if task.window.label_rule != "whole" or has_odd_times(task, recording.streams):
        return
    found = mixed_windows(task, recording)
    if found.mixed > MANY * found.windows:
        words = (
            f"{found.mixed} of {found.windows} windows hold more than one label, and have none: shorten "
            f'window.length_s ({task.window.length_s:g} s), or set window.label_rule = "majority"'
        )
        yield StreamFinding("mixed-labels", WARNING, words)


def mixed_windows(task: Task, recording: Recording) -> Mixed:
    """Windows in the recording's span, and those of them in which more than one label holds."""
    named, window = class_names.of_task(task, recording), task.window
    first, last = recording.span()
    labels = Labels(len(task.labels), window)
    labels.add(LabelBatch(named.label_t, named.label))
    low = int(np.floor(first / window.stride_s))
    period = min(1 / modality.rate_hz for modality in task.modalities)  # the last sample fills its own
    high = int(np.floor((last + period - window.length_s) / window.stride_s + 1e-6))
    start_B = np.arange(low, min(high + 1, low + _MOST_WINDOWS), dtype=np.float64) * window.stride_s
    return Mixed(len(start_B), int(labels.mixed(start_B, start_B + window.length_s).sum()))
