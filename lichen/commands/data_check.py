"""``lichen data check``: every file of a folder against a task, and the files against each other.

Shapes: C channels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.contract import WindowSet
from models.data import window_set
from models.data.labels.tables import by_recording
from models.data.streams import tables
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording, Stream, opened, read
from models.data.streams.recording_findings import ERROR, WARNING, StreamFinding, of_recording
from models.data.streams.stream_findings import factor_of
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Modality, Task

SUFFIXES: Final = (".npz", *tables.SUFFIXES)
_SPREAD: Final = 5.0
"""A channel that moves so many times as much as in the other files is reported."""
_FEW: Final = 8
_FRAMES: Final = 32
"""Frames of a file that the spread is computed from."""


@dataclass(frozen=True)
class Checked:
    """The content of one file.

    Attributes:
        file: its path.
        findings: errors and warnings.
        seconds: of recording; None for a window set.
        windows: cut from it.
        by_class: labelled ones, by class of ``label``.
        by_modality: the labelled ones in which a modality is present, by class.
        covered_s: seconds covered by windows.
        spread: by modality, the median over channels of the standard deviation.
    """

    file: Path
    findings: tuple[StreamFinding, ...] = ()
    seconds: float | None = None
    windows: int = 0
    by_class: Mapping[str, int] = field(default_factory=dict)
    by_modality: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    covered_s: float = 0.0
    spread: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        left = None if not self.seconds else round(max(0.0, 1 - self.covered_s / self.seconds), 4)
        return {
            "file": str(self.file),
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "windows": self.windows,
            "labelled": sum(self.by_class.values()),
            "by_class": dict(self.by_class),
            "by_modality": {name: dict(counts) for name, counts in self.by_modality.items()},
            "share_without_window": left,
            "findings": [finding.as_json() for finding in self.findings],
        }


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The named files, and those in named folders, sorted.

    Raises:
        Misconfigured: a path does not exist, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise Misconfigured(f"{path}: there is no such file or folder")
        inside = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise Misconfigured(f"{path}: it has no file of {', '.join(SUFFIXES)}")
        found += inside
    return found


def checked(task: Task, file: Path) -> Checked:
    """Check one file; an unreadable one gives a finding too."""
    try:
        if file.suffix == ".npz" and window_set.is_one(file):
            return _of_set(task, file, window_set.load(file, task))
        return _of_recordings(task, file, _recordings(task, file))
    except Misconfigured as error:
        words = str(error).replace(f"recording {file}: ", "").replace(f"{file}: ", "")
        return Checked(file, (StreamFinding("unreadable", ERROR, words),))


def across(task: Task, every: Sequence[Checked]) -> tuple[StreamFinding, ...]:
    """Findings from all files together."""
    return (*_absent(task, every), *_spreads(task, every))


def _recordings(task: Task, file: Path) -> list[Recording]:
    """Recordings of a file: a table may hold several, if the task's ``[labelled]`` names its columns."""
    named = task.labelled
    if named is not None and file.suffix in tables.SUFFIXES:
        columns = {named.label_column, named.recording_column} - {LABEL, None}
        if columns and columns <= {*tables.header(file)}:
            return [*opened(file, lambda path: by_recording(task, named, path)).values()]
    return [read(file)]


def _of_recordings(task: Task, file: Path, recordings: Sequence[Recording]) -> Checked:
    findings: dict[StreamFinding, None] = {}
    counts_MK = np.zeros((len(task.modalities) + 1, len(task.labels)), np.int64)  # the last row: any modality
    windows, seconds, covered = 0, 0.0, 0.0
    for recording in recordings:
        found = of_recording(task, recording)
        findings |= dict.fromkeys(found)
        first, last = recording.span()
        seconds += last - first
        if any(one.kind == "channels" for one in found) or not {*recording.streams} & {*task.modality_names}:
            continue
        starts = []
        for part in cut(task, recording):
            starts.append(part.start_B)
            counts_MK += _counts_of(part.present_BM, part.y_B, len(task.labels))
        start_B = np.concatenate([np.empty(0), *starts])
        windows += len(start_B)
        covered += _covered_s(start_B, task.window.length_s, first, last)
    if not windows:
        words = f"no window of {task.window.length_s:g} s (window.length_s) in {seconds:.4g} s of recording"
        findings[StreamFinding("no-window", ERROR, words)] = None
    elif seconds and 1 - covered / seconds > 1 / _FEW:
        words = f"{1 - covered / seconds:.1%} of {seconds:.4g} s lie in no window: {_why(task, findings)}"
        findings[StreamFinding("without-window", WARNING, words)] = None
    by_class, by_modality = _named(task, counts_MK)
    spread = _spread_of(task, recordings)
    return Checked(file, (*findings,), seconds, windows, by_class, by_modality, covered, spread)


def _counts_of(present_BM: NDArray[np.bool_], y_B: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Labelled windows by class (columns): a row for each modality, and one for all windows."""
    of_B = y_B >= 0
    rows = [np.bincount(y_B[of_B & present_B], minlength=classes) for present_B in present_BM.T]
    return np.stack([*rows, np.bincount(y_B[of_B], minlength=classes)])


def _named(task: Task, counts_MK: NDArray[np.int64]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """By class; by modality and class."""
    rows = [dict(zip(task.labels, row, strict=True)) for row in counts_MK.tolist()]
    return rows[-1], dict(zip(task.modality_names, rows[:-1], strict=True))


def _why(task: Task, findings: Mapping[StreamFinding, None]) -> str:
    kinds = {finding.kind for finding in findings}
    for kind, words in (("time-unit", "its times are not in seconds"), ("gaps", "it has gaps, see there")):
        if kind in kinds:
            return words
    if task.window.stride_s > task.window.length_s:
        return "window.stride_s is longer than window.length_s"
    return (
        f"under window.min_coverage ({task.window.min_coverage:g}) of a window's samples are there, or "
        "recordings are hardly longer than a window"
    )


def _covered_s(
    start_B: np.ndarray[Any, np.dtype[np.float64]], length_s: float, first: float, last: float
) -> float:
    """Seconds from ``first`` to ``last`` that are in a window."""
    if not len(start_B):
        return 0.0
    begin_B, end_B = np.clip(start_B, first, last), np.clip(start_B + length_s, first, last)
    fresh_B = end_B - np.maximum(begin_B, np.concatenate([[first], end_B[:-1]]))
    return float(np.maximum(fresh_B, 0.0).sum())


def _spread_of(task: Task, recordings: Sequence[Recording]) -> dict[str, float]:
    found = {}
    for name in task.modality_names:
        modality = task.modality(name)
        parts = [_some(modality, one.streams[name]) for one in recordings if name in one.streams]
        if parts and len({part.shape[1] for part in parts}) == 1:
            with np.errstate(invalid="ignore", over="ignore"):
                values = np.concatenate(parts).astype(np.float64)
                values = values[np.isfinite(values).all(axis=1)]
            if values.size:
                found[name] = float(np.median(values.std(axis=0)))
    return found


def _some(modality: Modality, stream: Stream) -> NDArray[np.float32] | NDArray[np.uint8]:
    """The values that a spread is computed from: of frames a few; a text has none."""
    return stream.values[:: max(1, len(stream.t) // _FRAMES)] if modality.framed else stream.values


def _of_set(task: Task, file: Path, windows: WindowSet) -> Checked:
    by_class, by_modality = _named(task, _counts_of(windows.present_BM, windows.y_B, len(task.labels)))
    absent = [n for m, n in enumerate(task.modality_names) if not windows.present_BM[:, m].any()]
    findings = tuple(
        StreamFinding("missing-modality", WARNING, f"modality {name!r} is in none of its windows", name)
        for name in absent
    )
    return Checked(file, findings, windows=len(windows), by_class=by_class, by_modality=by_modality)


def _absent(task: Task, every: Sequence[Checked]) -> Iterator[StreamFinding]:
    """Classes and modalities that no file has."""
    if not any(one.by_class for one in every):
        return
    total = {label: sum(one.by_class.get(label, 0) for one in every) for label in task.labels}
    if not any(total.values()):
        words = "no window of any file has a label: only a method that learns without labels can use them"
        yield StreamFinding("no-label", WARNING, words)
        total = {}
    present = [label for label, count in total.items() if count]
    if len(present) == 1:
        words = (
            f"all {total[present[0]]} labelled windows are of class {present[0]!r}: any score on them says "
            "nothing; are windows longer than the other activities (window.length_s, window.label_rule)?"
        )
        yield StreamFinding("one-class", ERROR, words)
    for label, count in total.items():
        if count < _FEW:
            number = f"only {count} windows" if count else "no window"
            yield StreamFinding("rare-class", WARNING, f"class {label!r}: {number} in all files together")
    kinds = [{f.modality for f in one.findings if f.kind == "missing-modality"} for one in every]
    for name in task.modality_names:
        if all(name in missing for missing in kinds):
            yield StreamFinding("missing-modality", ERROR, f"modality {name!r} is in no file", name)


def _spreads(task: Task, every: Sequence[Checked]) -> Iterator[StreamFinding]:
    """Files with values that move far more, or far less, than those of the others."""
    for name in task.modality_names:
        known = {one.file: one.spread[name] for one in every if one.spread.get(name)}
        if len(known) <= 2:  # noqa: PLR2004 - of two, neither is the odd one
            continue
        middle = float(np.median([*known.values()]))
        for file, spread in known.items():
            quotient = spread / middle
            if not 1 / _SPREAD <= quotient <= _SPREAD:
                factor = factor_of(quotient)
                words = f"{file}: modality {name!r} moves {quotient:.3g} times as much as in the other files"
                hint = f": off by {factor}, another unit?" if factor else ""
                yield StreamFinding("spread", ERROR if factor else WARNING, words + hint, name)


def require_windows(task: Task, what: str) -> Task:
    """Return the task if it is learned on windows.

    Args:
        task: any.
        what: the command that needs windows, for the message.

    Raises:
        Misconfigured: it is learned on knowledge graphs.
    """
    if task.graph is not None:
        raise Misconfigured(
            f"task {task.name!r} has a table [graph]: it is learned on facts, and {what} needs windows of "
            "streams; lichen demo and lichen bench of its method show such a fleet"
        )
    return task
