"""The coordinator's labelled windows (``task.labelled``): read from a file, checked against the task. NumPy.

A window set (npz, ``models.data.window_set``) is used unchanged. A recording (npz, csv, parquet,
``models.data.streams.recording``) is cut on the task's grid by the windower of the devices, so that windows
are the same on both sides. In tables the class of a row may be a label's name or its index.

Longer stretches (``window.context_s``) are not stored: labelled windows train a head, and only devices
contrast. Quality is 1 throughout: an operator's labels are trusted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from models import npz
from models.contract import WindowSet
from models.data import window_set
from models.data.labels import class_names
from models.data.labels.tables import by_recording
from models.data.streams import recording as recordings
from models.data.streams import tables
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording
from models.data.streams.recording_findings import of_recording
from models.data.streams.windows import Windows
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import LABEL, Task

FEW: Final = 8
"""With fewer labelled windows of a class, a head hardly learns it."""
MAX_BYTES: Final = npz.MAX_BYTES - (1 << 20)
"""The worker reads the windows from an npz, whose headers take some bytes too."""
OTHER_RULES: Final = 'or window.label_rule = "majority", "last" or "center" says which counts'
_SHOWN: Final = 12
_SAID: Final = {"unknown-modality", "missing-modality", "bounds", "channels"}
"""Findings that :func:`gaps` words itself, or that are errors here."""
_SHOWN_PATH: Final = 200
_WORDS: Final = 500
_TWO: Final = 2


@dataclass(frozen=True)
class LabelledFiles:
    """The content of a file.

    Attributes:
        path: the file.
        windows: all windows, also those without a label (-1).
        recordings: the recordings that they were cut from; None: the file is a window set.
        strange: modalities of the file that the task does not have.
        odd: other findings in its recordings, as text.
    """

    path: Path
    windows: WindowSet
    recordings: int | None = None
    strange: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


def load(task: Task, folder: Path) -> WindowSet:
    """The windows that are labelled and have a modality, in the file's order.

    Args:
        task: with ``labelled``.
        folder: the task file's; a relative ``labelled.file`` starts here.

    Raises:
        Misconfigured: as :func:`read` and :func:`usable`.
    """
    return usable(task, read(task, folder))


def read(task: Task, folder: Path) -> LabelledFiles:
    """The whole file.

    Raises:
        Misconfigured: the task names no file, or it is missing, of an unknown kind, damaged, or does not fit
            the task; the message names the file, and where it can line, column or key.
    """
    named = task.labelled
    if named is None:
        raise Misconfigured(f'task {task.name!r} names no labelled windows: [labelled] file = "..."')
    try:
        path = folder / Path(named.file).expanduser()
        is_there = path.is_file()
    except (OSError, RuntimeError) as error:  # an impossible file name, or a home folder that does not exist
        raise Misconfigured(f"file: {named.file[:_SHOWN_PATH]}: {error}"[:_WORDS]) from None
    if not is_there:
        raise Misconfigured(f"file: {path} is no file (relative paths begin where the task file is)")
    if path.suffix not in {".npz", *tables.SUFFIXES}:
        raise Misconfigured(
            f"file: {path}: suffix {path.suffix!r} is none of .npz, {', '.join(tables.SUFFIXES)}"
        )
    if path.suffix != ".npz":
        return _cut(task, path, recordings.opened(path, lambda file: by_recording(task, named, file)))
    _refuse_columns(named, path)
    if window_set.is_one(path):
        whole = replace(window_set.load(path, task), context=None)
        try:
            _refuse_more_than_fits(_bytes(whole))  # the file may hold values of a narrower type than float32
        except Misconfigured as error:
            raise Misconfigured(f"{path}: {error}") from None
        return LabelledFiles(path, whole)
    found = recordings.read(path)
    _refuse_classes(task, path, found)
    return _cut(task, path, {"": found})


def another(task: Task, path: Path) -> WindowSet | None:
    """All windows of another table, with the columns that the task names; None if it is no table.

    Raises:
        Misconfigured: as :func:`read`.
    """
    if task.labelled is None or path.suffix not in tables.SUFFIXES:
        return None
    named = task.labelled.model_copy(update={"file": str(path.resolve())})
    return read(task.model_copy(update={"labelled": named}), Path()).windows


def usable(task: Task, found: LabelledFiles) -> WindowSet:
    """The windows that can be used: labelled, with a modality.

    Raises:
        Misconfigured: there is none, or all are of one class and no other target is labelled.
    """
    windows, path = found.windows, found.path
    if not len(windows):
        raise Misconfigured(
            f"{path}: it gives no window: nothing in it is {task.window.length_s:g} s long (window.length_s) "
            f"without gaps over {task.window.max_gap_s:g} s (window.max_gap_s)"
        )
    takes = [target for target in task.objectives if target.kind != "generation"]
    labelled_B = np.any([np.isfinite(window_set.target(windows, target.name)) for target in takes], axis=0)
    chosen = window_set.select(windows, labelled_B & windows.present_BM.any(axis=1))
    if not len(chosen):
        rule = f": one label must hold for a whole window, {OTHER_RULES}"
        why = rule if found.recordings is not None and task.window.label_rule == "whole" else ""
        raise Misconfigured(f"{path}: none of its {len(windows)} windows is labelled{why}")
    classes = np.unique(chosen.y_B)
    others = any(np.isfinite(y_B).any() for y_B in chosen.targets.values())
    if len(classes) < _TWO and not others:
        raise Misconfigured(
            f"{path}: all {len(chosen)} labelled windows are of class {task.labels[classes[0]]!r}; "
            "a head cannot learn from them"
        )
    return chosen


def gaps(task: Task, found: LabelledFiles, windows: WindowSet) -> tuple[str, ...]:
    """Defects of the labelled windows, as text; empty if there are none.

    Args:
        task: the task.
        found: the content of the file.
        windows: its usable windows.
    """
    counts = {name: np.array(found_K) for name, found_K in window_set.counts(windows, task).items()}
    whole_K = np.bincount(windows.y_B[windows.y_B >= 0], minlength=len(task.labels))
    told = [f"modality {name!r}: in no window" for name, of_K in counts.items() if not of_K.any()]
    if found.strange:
        told.append(f"the task does not have what the file calls {', '.join(found.strange[:_SHOWN])}")
    for label, count in zip(task.labels, whole_K, strict=True):
        if count < FEW:
            told.append(f"class {label!r}: {f'only {count}' if count else 'no'} labelled windows")
    for name, of_K in counts.items():
        without = [
            label for label, count, of in zip(task.labels, whole_K, of_K, strict=True) if count and not of
        ]
        if of_K.any() and without:
            told.append(f"modality {name!r}: in no window of {', '.join(map(repr, without[:_SHOWN]))}")
    return (*told, *_beyond(task, windows), *found.odd)


def _beyond(task: Task, windows: WindowSet) -> list[str]:
    """Values outside a modality's bounds: most often in another unit."""
    told = []
    for m, modality in enumerate(task.modalities):
        x_BCT = windows.x[modality.name][windows.present_BM[:, m]]
        low = -np.inf if modality.low is None else modality.low
        high = np.inf if modality.high is None else modality.high
        wrong = int(((x_BCT < low) | (x_BCT > high)).any(axis=(1, 2)).sum())
        if wrong:
            told.append(
                f"modality {modality.name!r}: {wrong} of {len(x_BCT)} windows go beyond {low:g} to {high:g} "
                f"{modality.unit} (low, high): another unit?"
            )
    return told


def _refuse_columns(named: Labelled, path: Path) -> None:
    """An npz has no columns: a task that names one means another file."""
    for key, value, usual in (
        ("label_column", named.label_column, LABEL),
        ("recording_column", named.recording_column, None),
    ):
        if value != usual:
            raise Misconfigured(f"{key}: {path} is npz and has no columns; leave the key out")


def _refuse_classes(task: Task, path: Path, found: Recording) -> None:
    """Refuse a label that is no class: a device counts it as unlabelled, here it is an operator's mistake."""
    if not len(found.label_t):
        raise Misconfigured(f"{path}: no keys 'label/t' and 'label/values' in it: nothing is labelled")
    for strange in class_names.unknown(task, found).values():
        raise Misconfigured(
            f"{path}: label/values holds {strange[0]!r}, which is no label of task {task.name!r} (labels: "
            f"{', '.join(task.labels[:_SHOWN])})"
        )
    if found.names:
        return
    wrong = (found.label < -1) | (found.label >= len(task.labels))
    if wrong.any():
        raise Misconfigured(
            f"{path}: label/values holds {found.label[wrong][0]}; task {task.name!r} has classes 0 to "
            f"{len(task.labels) - 1}, and -1 means unlabelled"
        )


def _cut(task: Task, path: Path, found: Mapping[str, Recording]) -> LabelledFiles:
    """Windows of all recordings, by name; none spans two recordings."""
    alone = task.model_copy(update={"window": task.window.model_copy(update={"context_s": None})})
    parts, size = [window_set.empty(alone)], 0
    for name, recording in found.items():
        where = f"{path}: recording {name!r}" if name else f"{path}"
        try:
            for windows in cut(alone, recording):
                parts.append(_as_set(windows))
                size += _bytes(parts[-1])
                _refuse_more_than_fits(size)
        except Misconfigured as error:
            raise Misconfigured(f"{where}: {error}") from None
    strange = dict.fromkeys(s for one in found.values() for s in one.streams if s not in task.modality_names)
    odd = dict.fromkeys(
        finding.words
        for recording in found.values()
        for finding in of_recording(alone, recording)
        if finding.kind not in _SAID
    )
    return LabelledFiles(path, window_set.concat(parts), len(found), tuple(strange), (*odd,)[:_SHOWN])


def _bytes(windows: WindowSet) -> int:
    """Size in memory, and in the file that the worker reads."""
    rows = (windows.present_BM, windows.quality_BM, windows.y_B)
    return sum(array.nbytes for array in (*windows.x.values(), *rows, *windows.targets.values()))


def _refuse_more_than_fits(size: int) -> None:
    if size > MAX_BYTES:
        raise Misconfigured(
            f"the windows take over {MAX_BYTES / 1e9:.1f} GB: give less of it, or a larger window.stride_s"
        )


def _as_set(windows: Windows) -> WindowSet:
    quality_BM = np.ones(windows.present_BM.shape, np.float32)
    return WindowSet(windows.x, windows.present_BM, quality_BM, windows.y_B, windows.targets)
