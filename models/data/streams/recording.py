"""Recordings on disk: npz, csv and parquet.

npz: ``<modality>/t`` (n,) seconds, ``<modality>/values`` (n, C), optional ``label/t`` and ``label/values``
(n,), and by further target ``target/<name>/t`` and ``target/<name>/values`` (n,). Images are
``<modality>/values`` (n, C, H, W), or (n, C * H * W) with ``<modality>/shape`` (C, H, W); texts are
``<modality>/text`` (n,) in place of values. csv and parquet: a column ``t``, columns ``<modality>.<channel>``
(``<modality>.text`` of texts), optional columns ``label`` and ``target.<name>``. In tables an empty cell is a
missing sample: each modality keeps the rows in which all its cells are filled.

Labels hold until the next one. ``label`` is a class index, -1 for none; a further target's is a class index
or a number in its unit, NaN (an empty cell) for none. Labels may be class names instead of indices
(``Recording.names``; in npz an array of text, "" for none).
"""

import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from models import npz
from models.data.labels.labels import (
    PREFIX,
    TargetTrack,
    changes,
    classes_of,
    from_words,
    require_name,
    target,
)
from models.data.streams import tables
from models.data.streams.recorded_stream import Stream, of_arrays, of_texts
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL

__all__ = ["MAX_BYTES", "Recording", "Stream", "label_tracks", "of_columns", "opened", "read", "write_npz"]
MAX_BYTES: Final = 2 * 1024**3
"""A recording is held in memory while it is replayed; a larger file is refused."""

NO_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
NO_TEXTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
TEXT: Final = "text"
"""Of a table ``<modality>.text``, of an npz ``<modality>/text``."""
R = TypeVar("R")


@dataclass(frozen=True)
class Recording:
    """Streams by modality, changes of ``label`` (``label_t``, ``label`` (k,) int64) and further targets.

    ``names``: the class names of targets whose classes the file names; their values index these names, and
    not yet the task's classes (:func:`models.data.labels.class_names.of_task`).
    """

    streams: Mapping[str, Stream]
    label_t: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    label: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    targets: Mapping[str, TargetTrack] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def span(self) -> tuple[float, float]:
        """First and last time in seconds over all streams; (0, 0) where all are empty."""
        ends = [(s.t[0], s.t[-1]) for s in self.streams.values() if len(s.t)]
        return (min(float(a) for a, _ in ends), max(float(b) for _, b in ends)) if ends else (0.0, 0.0)


def label_tracks(
    recording: Recording,
) -> list[tuple[str, NDArray[np.float64], NDArray[np.int64] | NDArray[np.float64]]]:
    """Target, times and values of every label track that is not empty; ``label`` first."""
    tracks: list[tuple[str, NDArray[np.float64], NDArray[np.int64] | NDArray[np.float64]]]
    tracks = [(LABEL, recording.label_t, recording.label)]
    tracks += [(name, track.t, track.values) for name, track in recording.targets.items()]
    return [track for track in tracks if len(track[1])]


def read(path: Path) -> Recording:
    """Read a recording by its suffix.

    Raises:
        Misconfigured: the file is missing, too large, of an unknown kind, or damaged; names file and key.
    """
    known = (".npz", *tables.SUFFIXES)
    if path.suffix not in known:
        raise Misconfigured(f"recording {path}: suffix {path.suffix!r} is none of {', '.join(known)}")
    return opened(path, _read_npz if path.suffix == ".npz" else _read_table)


def opened(path: Path, reader: Callable[[Path], R]) -> R:
    """Read a file with ``reader``, if it is not too large.

    Raises:
        Misconfigured: the file is missing or too large, or the error of the reader.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Misconfigured(f"recording {path}: {size} bytes, at most {MAX_BYTES}; split it")
        return reader(path)
    except OSError as error:
        raise Misconfigured(f"recording {path}: {error.strerror or error}") from None


def write_npz(path: Path, recording: Recording) -> None:
    """Write a recording as npz."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, stream in recording.streams.items():
        arrays[f"{name}/t"] = stream.t
        if stream.texts:
            arrays[f"{name}/{TEXT}"] = np.array(stream.texts, np.str_)
        else:
            shape = (len(stream.t), *stream.size) if stream.size else stream.values.shape
            arrays[f"{name}/values"] = stream.values.reshape(shape)
    for name, t, values in label_tracks(recording):
        key = LABEL if name == LABEL else f"{PREFIX}/{name}"
        arrays[f"{key}/t"], arrays[f"{key}/values"] = t, _named(values, recording.names.get(name, ()))
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own option


def _named(values: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """Class indices as names again."""
    if not names:
        return values
    return np.array([names[int(value)] if value >= 0 else "" for value in values], np.str_)


def _read_npz(path: Path) -> Recording:
    if not zipfile.is_zipfile(path):
        raise Misconfigured(f"recording {path}: not a plain npz file, which numpy.savez writes")
    try:
        arrays = npz.read(path, MAX_BYTES)
    except npz.BadNpz as error:
        raise Misconfigured(f"recording {path}: not a plain npz file: {error}") from None
    groups = {key.rpartition("/")[0] for key in arrays if "/" in key}
    tracks = {name for name in groups if name.split("/")[0] == PREFIX}
    names = sorted(groups - tracks - {LABEL})
    if not names:
        found = ", ".join(sorted(arrays)[:8]) or "nothing"
        raise Misconfigured(f"recording {path}: no key '<modality>/t' in it (found {found})")
    streams = {name: _stream(path, name, arrays) for name in names}
    targets, named = {}, {}
    for track in sorted(tracks):
        name = track.partition("/")[2]
        require_name(path, name)
        t, values, named[name] = _counted(path, name, *_pair(path, track, arrays))
        targets[name] = target(path, name, t, values)
    if not arrays.keys() & {f"{LABEL}/t", f"{LABEL}/values"}:
        return Recording(streams, targets=targets, names=_some(named))
    t, values, named[LABEL] = _counted(path, LABEL, *_pair(path, LABEL, arrays))
    return Recording(streams, *classes_of(path, t, values), targets, _some(named))


def _counted(
    path: Path, name: str, t: NDArray[np.generic], values: NDArray[np.generic]
) -> tuple[NDArray[np.generic], NDArray[np.generic], tuple[str, ...]]:
    """A label track with its text, if any, as indices; and the names."""
    if values.dtype.kind != "U" or values.ndim != 1:
        return t, values, ()
    counted, names = from_words(path, name, [str(word).strip() for word in values])
    return t, counted, names


def _some(named: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: names for name, names in named.items() if names}


def _pair(
    path: Path, name: str, arrays: Mapping[str, NDArray[np.generic]]
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    for part in ("t", "values"):
        if f"{name}/{part}" not in arrays:
            raise Misconfigured(
                f"recording {path}: key '{name}/{part}' is missing: '{name}/t' and '{name}/values' come "
                "together or not at all"
            )
    return arrays[f"{name}/t"], arrays[f"{name}/values"]


def _stream(path: Path, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Stream:
    texts, shape = arrays.get(f"{name}/{TEXT}"), arrays.get(f"{name}/shape")
    if texts is None:
        size = () if shape is None or shape.dtype.kind not in "iu" else tuple(shape.ravel().tolist())
        return of_arrays(path, name, *_pair(path, name, arrays), size)
    if f"{name}/values" in arrays or f"{name}/t" not in arrays:
        raise Misconfigured(f"recording {path}: '{name}/{TEXT}' comes with '{name}/t' and without values")
    if texts.dtype.kind != "U" or texts.ndim != 1:
        raise Misconfigured(
            f"recording {path}: '{name}/{TEXT}' holds {texts.dtype} {texts.shape}, not text (n,)"
        )
    return of_texts(path, name, arrays[f"{name}/t"], texts.tolist())


def _read_table(path: Path) -> Recording:
    """Label columns may hold names, columns of texts hold texts, all others numbers."""
    header = tables.header(path)
    of_labels = [name for name in header if name == LABEL or name.startswith(f"{PREFIX}.")]
    table = tables.read(path, {name: name for name in (*of_labels, *text_columns(header))})
    columns, named = dict(table.numbers), {}
    for column in of_labels:
        words = table.words[column]
        columns[column], named[column.removeprefix(f"{PREFIX}.")] = from_words(path, column, words)
    texts = {column: table.words[column] for column in text_columns(header)}
    return of_columns(path, columns, _some(named), texts)


def text_columns(header: Iterable[str]) -> list[str]:
    """The columns of a table that hold the texts of a modality."""
    return [name for name in header if name.endswith(f".{TEXT}") and not name.startswith(f"{PREFIX}.")]


def of_columns(
    path: Path,
    columns: Mapping[str, NDArray[np.float64]],
    names: Mapping[str, tuple[str, ...]] = NO_NAMES,
    texts: Mapping[str, Sequence[str]] = NO_TEXTS,
) -> Recording:
    """A recording from the columns of a table, each (n,), NaN for an empty cell.

    ``names``: as in :class:`Recording`. ``texts``: by column ``<modality>.text``, "" for an empty cell.

    Raises:
        Misconfigured: there is no time or no modality among them, or they hold an invalid value; names
            ``path`` and the column.
    """
    if "t" not in columns:
        raise Misconfigured(f"recording {path}: no column 't' (columns: {', '.join(list(columns)[:12])})")
    t = columns["t"]
    groups: dict[str, list[str]] = {}
    for name in columns:
        if "." in name:
            groups.setdefault(name.partition(".")[0], []).append(name)
    targets = {}
    for column in groups.pop(PREFIX, []):
        name = column.partition(".")[2]
        require_name(path, name)
        targets[name] = changes(target(path, name, t, columns[column]))
    if not groups and not texts:
        raise Misconfigured(f"recording {path}: no column '<modality>.<channel>'")
    streams = {name.partition(".")[0]: of_texts(path, name, t, words) for name, words in texts.items()}
    for modality, channels in groups.items():
        if modality in streams:
            raise Misconfigured(
                f"recording {path}: modality {modality!r} has a column of texts and {channels[0]!r}"
            )
        values = np.stack([columns[n] for n in channels], axis=1)
        filled = np.isfinite(values).all(axis=1)
        streams[modality] = of_arrays(path, modality, t[filled], values[filled])
    if LABEL not in columns:
        return Recording(streams, targets=targets, names=names)
    times, label = classes_of(path, t, columns[LABEL])
    change = np.flatnonzero(np.diff(label, prepend=np.int64(-2)))
    return Recording(streams, times[change], label[change], targets, names)
