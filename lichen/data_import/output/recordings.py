"""Recordings that are being imported: one a device, written as npz when all is read.

Shapes: n samples or rows, C channels.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.output.class_words import ClassWords
from lichen.data_import.output.forms import Form, RecordingForms
from lichen.data_import.output.spool import ArraySpool, SpooledArray
from models.data.labels.labels import PREFIX
from models.data.streams.recording import MAX_BYTES
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL

MOST_RECORDINGS: Final = 10_000
_MOST_LETTERS: Final = 100


@dataclass
class GrowingRecording:
    """What is known of one recording.

    Attributes:
        name: of its file, without the suffix.
        first_s, last_s: its span.
        samples: by modality.
        seconds: of each class, by its code.
        examples: so many; 0: its samples have times.
    """

    name: str
    first_s: float = np.inf
    last_s: float = -np.inf
    samples: Counter[str] = field(default_factory=Counter)
    seconds: dict[int, float] = field(default_factory=dict)
    examples: int = 0
    label: int | None = None
    label_s: float = 0.0
    in_force: dict[str, float] = field(default_factory=dict)

    def add_seconds(self, code: int, seconds: float) -> None:
        """Count time of a class."""
        self.seconds[code] = self.seconds.get(code, 0.0) + seconds


class RecordingWriter:
    """Takes samples and labels of devices, in any order of devices, and writes a recording of each.

    Args:
        spool: for the samples.
        classes: the words of classes.
        example_s: each example takes so many seconds; None: samples have times.
        seed: of the order of examples.
    """

    def __init__(self, spool: ArraySpool, classes: ClassWords, example_s: float | None, seed: int) -> None:
        self._spool = spool
        self.classes = classes
        self.example_s = example_s
        self._seed = seed
        self._forms: dict[str, Form] = {}
        self._names: dict[str, str] = {}
        self.recordings: dict[str, GrowingRecording] = {}

    def of(self, device: str) -> GrowingRecording:
        """The recording of a device.

        Raises:
            Misconfigured: there are too many.
        """
        found = self.recordings.get(device)
        if found is None:
            if len(self.recordings) >= MOST_RECORDINGS:
                raise Misconfigured(
                    f"over {MOST_RECORDINGS:,} recordings: does the column of devices or persons hold "
                    "something else? Name it: --device"
                )
            found = self.recordings[device] = GrowingRecording(self._file_name(device))
        return found

    def _file_name(self, device: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", device).strip(".-")[:_MOST_LETTERS] or "recording"
        name, number = plain, 1
        while self._names.setdefault(name.casefold(), device) != device:
            number += 1
            name = f"{plain}-{number}"
        return name

    def samples(
        self, device: str, modality: str, t: NDArray[np.float64], values: NDArray[Any], form: Form
    ) -> None:
        """Append samples: ``t`` (n,) seconds, ``values`` (n, C).

        Raises:
            Misconfigured: the recording would be too large to be read, or a modality's channels differ.
        """
        if not len(t):
            return
        recording = self.of(device)
        if self._forms.setdefault(modality, form) != form:
            raise Misconfigured(
                f"modality {modality!r} is {form} in a file, and {self._forms[modality]} in another"
            )
        try:
            times = self._spool.append((device, modality, "t"), t)
            stored = self._spool.append((device, modality, "values"), values)
        except ValueError:
            raise Misconfigured(
                f"modality {modality!r} of {device!r} has {values.shape[1]} channels here, and another "
                "number in an earlier file"
            ) from None
        if times.bytes + stored.bytes > MAX_BYTES:
            raise Misconfigured(
                f"recording {device!r}: over {MAX_BYTES >> 30} GiB of {modality!r}; a recording is read into "
                "memory: import less of it at once, or tell its devices or days apart (--device)"
            )
        recording.samples[modality] += len(t)
        recording.first_s = min(recording.first_s, float(t.min()))
        recording.last_s = max(recording.last_s, float(t.max()))

    def labels(self, device: str, t: NDArray[np.float64], codes: NDArray[np.int32]) -> None:
        """Append the class of each row, -1 for none; what repeats the one before is not stored."""
        recording = self.of(device)
        before = np.int32(-2) if recording.label is None else np.int32(recording.label)
        at = np.flatnonzero(np.diff(codes, prepend=before))
        if len(at):
            self._spool.append((device, LABEL, "t"), t[at])
            self._spool.append((device, LABEL, "values"), codes[at])
        for place in at.tolist():
            self._close(recording, float(t[place]))
            recording.label, recording.label_s = int(codes[place]), float(t[place])

    @staticmethod
    def _close(recording: GrowingRecording, until: float) -> None:
        """Count the time of the class that ends."""
        if recording.label is not None and recording.label >= 0:
            recording.add_seconds(recording.label, max(0.0, until - recording.label_s))

    def target(self, device: str, name: str, t: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Append the values of a further target: numbers or codes of its classes, NaN for none."""
        recording = self.of(device)
        last = recording.in_force.get(name, -np.inf)
        whole = np.concatenate([[last], values])
        at = np.flatnonzero(~((whole[1:] == whole[:-1]) | (np.isnan(whole[1:]) & np.isnan(whole[:-1]))))
        if len(values):
            recording.in_force[name] = float(values[-1])
        self._spool.append((device, f"{PREFIX}/{name}", "t"), t[at])
        self._spool.append((device, f"{PREFIX}/{name}", "values"), values[at])

    def examples(
        self, device: str, modality: str, values: NDArray[Any], codes: NDArray[np.int32], form: Form
    ) -> None:
        """Append examples, (n, C) and the class of each: one sample for each, in the middle of its time."""
        assert self.example_s is not None  # noqa: S101 - examples have a duration
        recording = self.of(device)
        middle = (np.arange(len(values), dtype=np.float64) + recording.examples + 0.5) * self.example_s
        self.samples(device, modality, middle, values, form)
        self.label_examples(device, codes)

    def label_examples(self, device: str, codes: NDArray[np.int32]) -> None:
        """Append the classes of examples; their times follow from their number."""
        assert self.example_s is not None  # noqa: S101 - as above
        recording = self.of(device)
        begin = (np.arange(len(codes), dtype=np.float64) + recording.examples) * self.example_s
        self._spool.append((device, LABEL, "t"), begin)
        self._spool.append((device, LABEL, "values"), codes)
        recording.examples += len(codes)
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            recording.add_seconds(int(code), float(count) * self.example_s)

    def finish(self) -> None:
        """Count the last class of each recording."""
        for recording in self.recordings.values():
            if not recording.examples:
                self._close(recording, recording.last_s)
            recording.seconds.pop(-1, None)

    def write(self, device: str, file: Path, *, shuffled: bool) -> None:
        """Write the recording of a device; ``shuffled``: its examples in a random order.

        Raises:
            OSError: the file cannot be written.
        """
        recording = self.recordings[device]
        order = None
        if shuffled and recording.examples:
            order = np.random.default_rng([self._seed, recording.examples]).permutation(recording.examples)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for key, array in RecordingForms(self._of(recording), self.example_s).arrays().items():
                _write(archive, key, array.dtype, array.shape, iter([array]))
            for name in recording.samples:
                times = self._array(device, name, "t")
                values = self._array(device, name, "values")
                _write(archive, f"{name}/t", times.dtype, times.shape, times.blocks())
                _write(archive, f"{name}/values", values.dtype, values.shape, values.blocks(order))
            self._write_labels(archive, device, LABEL, order)
            for name in recording.in_force:
                self._write_labels(archive, device, f"{PREFIX}/{name}", None)

    def _of(self, recording: GrowingRecording) -> Mapping[str, Form]:
        return {name: self._forms[name] for name in recording.samples}

    def _array(self, device: str, name: str, part: str) -> SpooledArray:
        found = self._spool.get((device, name, part))
        assert found is not None  # noqa: S101 - it was counted, so it was appended
        return found

    def _write_labels(
        self, archive: zipfile.ZipFile, device: str, track: str, order: NDArray[np.int64] | None
    ) -> None:
        times, codes = self._spool.get((device, track, "t")), self._spool.get((device, track, "values"))
        if times is None or codes is None:
            return
        _write(archive, f"{track}/t", times.dtype, times.shape, times.blocks())
        to = self.classes.written(track)
        blocks = (to.of(block) for block in codes.blocks(order))
        _write(archive, f"{track}/values", to.dtype, codes.shape, blocks)


def _write(
    archive: zipfile.ZipFile,
    key: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    blocks: Iterator[NDArray[Any]],
) -> None:
    """One array of an npz, block by block."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array_header_1_0(entry, header)
        for block in blocks:
            entry.write(np.ascontiguousarray(block, dtype).tobytes())
