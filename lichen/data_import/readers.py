"""Reads the files of each kind into recordings, and says what was taken for what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lichen.data_import.image_import import EXAMPLE_S, ImageImport
from lichen.data_import.import_options import ImportOptions
from lichen.data_import.listing import FoundFiles, ImportedFile
from lichen.data_import.output.class_words import ClassWords
from lichen.data_import.output.recordings import RecordingWriter
from lichen.data_import.output.spool import ArraySpool
from lichen.data_import.progress import ProgressLine
from lichen.data_import.sounds import sound_import
from lichen.data_import.sounds.sound_import import SoundImport
from lichen.data_import.tables.columns import Columns
from lichen.data_import.tables.table_import import SESSION_GAP_S, TableImport, labelled
from lichen.data_import.tables.times import TimeUnit
from protocol.errors import Misconfigured

_SHOWN: Final = 8


@dataclass(frozen=True)
class ReadFiles:
    """The recordings of the files that were read.

    Attributes:
        writer: has them.
        mapping: what was taken for what: a subject, and words about it.
        notes: what a reader should know.
        refused: files that were left out, with the reasons.
    """

    writer: RecordingWriter
    mapping: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def tables(
    found: FoundFiles, options: ImportOptions, spool: ArraySpool, classes: ClassWords, progress: ProgressLine
) -> ReadFiles:
    """Read tables.

    Raises:
        Misconfigured: one is damaged, or a cell does not fit its column; names file, line and column.
        OSError: the spool cannot be written.
    """
    writer = RecordingWriter(spool, classes, 1.0 if options.examples else None, options.seed)
    reading = TableImport(options, writer)
    for file in found.files:
        progress.next_file()
        try:
            reading.add(file, progress)
        except OSError as error:
            if error.filename not in {None, str(file.path)}:
                raise
            raise Misconfigured(f"{file.path}: {error.strerror or error}") from None
    lines = (line for chosen, unit in reading.found.values() for line in _roles(found, options, chosen, unit))
    return ReadFiles(writer, tuple(lines), tuple(_notes(reading)))


def _roles(
    found: FoundFiles, options: ImportOptions, chosen: Columns, unit: TimeUnit | None
) -> Iterator[tuple[str, str]]:
    if unit is not None:
        yield "time", f"{chosen.time}: {unit.words}"
    elif options.examples:
        yield "time", "none: each row is an example, one a second"
    else:
        yield "time", f"none: {options.rate_hz:g} rows a second"
    of_path = chosen.label is None and any(file.label for file in found.files)
    yield "label", found.why if of_path else labelled(chosen)
    yield from (("target", f"{name}: {column}") for name, column in chosen.targets.items())
    yield "recording", _recording_of(found, options, chosen.device)
    yield from (("modality", f"{name}: {_listed(columns)}") for name, columns in chosen.modalities.items())
    yield from (("left out", f"{name!r}: {why}") for name, why in chosen.left_out.items())


def _notes(reading: TableImport) -> Iterator[str]:
    if reading.sessions:
        yield (
            f"time goes back {reading.sessions} times, first at {reading.first_session}: each begins a "
            f"session, {SESSION_GAP_S:g} s after the one before"
        )
    if reading.shortened:
        yield f"{reading.shortened} gaps were shortened to {reading.options.longest_gap_s:g} s"
    for name, count in reading.gaps.items():
        if count:
            yield f"modality {name!r}: {count} of {reading.rows} rows lack a value: no sample there"


def _recording_of(found: FoundFiles, options: ImportOptions, device: str | None) -> str:
    if options.deal is not None:
        return f"rows are dealt to {options.deal} recordings"
    if any(file.device for file in found.files):
        return f"one for each device, {found.why}"
    return f"one for each {device}" if device is not None else "one for each file (--device names a column)"


def _listed(columns: Sequence[str]) -> str:
    if len(columns) <= _SHOWN:
        return ", ".join(columns)
    return f"{', '.join(columns[: _SHOWN - 1])} to {columns[-1]} ({len(columns)} columns)"


def sounds(
    found: FoundFiles, options: ImportOptions, spool: ArraySpool, classes: ClassWords, progress: ProgressLine
) -> ReadFiles:
    """Read sound files; those that cannot be read are left out.

    Raises:
        Misconfigured: none can be read.
        OSError: the spool cannot be written.
    """
    plan = sound_import.plan(found.files, options)
    writer = RecordingWriter(spool, classes, plan.clip_s, options.seed)
    reading = SoundImport(options, writer, plan)
    files = [*plan.files]
    if plan.clip_s is not None:
        files = [files[at] for at in np.random.default_rng(options.seed).permutation(len(files))]
    devices = _devices([file for file, _ in files], options)
    for device, (file, sound) in zip(devices, files, strict=True):
        progress.next_file()
        reading.add(device, file, sound, progress)
    mapping = [("sound", words) for words in plan.why]
    return ReadFiles(writer, (*mapping, *_labels_of(found, options)), refused=plan.refused)


def images(
    found: FoundFiles, options: ImportOptions, spool: ArraySpool, classes: ClassWords, progress: ProgressLine
) -> ReadFiles:
    """Read images; those that cannot be read are left out.

    Raises:
        Misconfigured: none can be read.
        OSError: the spool cannot be written.
    """
    writer = RecordingWriter(spool, classes, EXAMPLE_S, options.seed)
    reading = ImageImport(options, writer)
    files = [found.files[at] for at in np.random.default_rng(options.seed).permutation(len(found.files))]
    refused: list[str] = []
    for device, file in zip(_devices(files, options), files, strict=True):
        progress.next_file()
        try:
            reading.add(device, file, progress)
        except Misconfigured as error:
            if str(error).startswith(f"{file.path}: "):
                refused.append(str(error))
                continue
            raise
    if len(refused) == len(files):
        raise Misconfigured(f"none of {len(files)} images can be read; the first: {refused[0]}")
    height, width = options.size
    colours = "colour" if options.colour else "grey (--colour: three channels)"
    mapping = [("images", f"the middle of each, at {width} x {height} pixels, {colours}")]
    return ReadFiles(writer, (*mapping, *_labels_of(found, options)), refused=tuple(sorted(refused)))


def _devices(files: Sequence[ImportedFile], options: ImportOptions) -> list[str]:
    """The recording of each file."""
    if options.deal is not None:
        of = np.random.default_rng([options.seed, 1]).integers(options.deal, size=len(files))
        return [f"part-{at + 1}" for at in of]
    return [file.device or "all" for file in files]


def _labels_of(found: FoundFiles, options: ImportOptions) -> list[tuple[str, str]]:
    lines = [("label", found.why)]
    if options.deal is not None:
        return [*lines, ("recording", f"examples are dealt to {options.deal} recordings")]
    if any(file.device for file in found.files):
        return [*lines, ("recording", "one for each device or person")]
    return [
        *lines,
        ("recording", "all in one (--deal N deals examples to N; --pattern takes it from the path)"),
    ]
