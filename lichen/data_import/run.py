"""One import: find the files, read them, write a recording for each device."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lichen.data_import import readers
from lichen.data_import.import_options import ImportOptions
from lichen.data_import.listing import FoundFiles, ImportedFile
from lichen.data_import.output.class_words import ClassWords
from lichen.data_import.output.recordings import GrowingRecording, RecordingWriter
from lichen.data_import.output.spool import ArraySpool
from lichen.data_import.progress import ProgressLine
from protocol.errors import Misconfigured
from runtime import exit_codes
from runtime.outputs import NotWritten, writing
from runtime.storage.files import make_folder, put_in_place


@dataclass(frozen=True)
class ImportReport:
    """What was imported.

    Attributes:
        kind: of the files.
        files: so many were read.
        mapping: what was taken for what, a line each: a subject and its words.
        recordings: in the order of first mention.
        classes: names of ``label``.
        names: of the classes by code, for ``recordings``.
        notes: what a reader should know.
        refused: files that were left out, with the reasons.
        out: the folder; None: nothing was written.
    """

    kind: str
    files: int
    mapping: tuple[tuple[str, str], ...]
    recordings: tuple[GrowingRecording, ...]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    out: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "files": self.files,
            "mapping": [list(line) for line in self.mapping],
            "recordings": [
                {
                    "name": one.name,
                    "seconds": round(max(0.0, one.last_s - one.first_s), 3),
                    "samples": dict(one.samples),
                    "examples": one.examples or None,
                    "seconds_by_class": {
                        self.names[code]: round(seconds, 3) for code, seconds in one.seconds.items()
                    },
                }
                for one in self.recordings
            ],
            "classes": list(self.classes),
            "notes": list(self.notes),
            "refused": list(self.refused),
            "out": None if self.out is None else str(self.out),
        }


def run(found: FoundFiles, options: ImportOptions, out: Path | None) -> ImportReport:
    """Import the files.

    Args:
        found: the files.
        options: of the command line.
        out: a folder that is missing or empty; None: read all and write nothing.

    Raises:
        Misconfigured: a file or an option does not fit; names file, line and column.
        NotWritten: the folder has files, or cannot be written.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NotWritten(f"--out {out}: it is there and not empty; name a new folder", exit_codes.CANTCREAT)
    with _spool_folder(out) as folder:
        report, writer = _read(found, options, ArraySpool(folder))
        writer.finish()
        if not any(one.samples for one in writer.recordings.values()):
            raise Misconfigured(f"nothing was imported: no sample in {len(found.files)} files")
        if out is not None and folder is not None:
            _write(writer, out, folder, shuffled=found.kind == "table")
    return replace(report, out=out)


@contextmanager
def _spool_folder(out: Path | None) -> Iterator[Path | None]:
    """A folder beside the results, on the same disk, that is removed at the end."""
    if out is None:
        yield None
        return
    with writing(out):
        make_folder(out)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=out) as folder:
        yield Path(folder)


def _write(writer: RecordingWriter, out: Path, folder: Path, *, shuffled: bool) -> None:
    for device, recording in writer.recordings.items():
        if recording.samples:
            part = folder / "recording.npz"
            with writing(out):
                writer.write(device, part, shuffled=shuffled)
                put_in_place(part, out / f"{recording.name}.npz")


def _read(
    found: FoundFiles, options: ImportOptions, spool: ArraySpool
) -> tuple[ImportReport, RecordingWriter]:
    classes = ClassWords(options.classes)
    progress = ProgressLine(sum(_size(file) for file in found.files))
    try:
        with writing(Path("the spool of the import")):
            match found.kind:
                case "table":
                    read = readers.tables(found, options, spool, classes, progress)
                case "sound":
                    read = readers.sounds(found, options, spool, classes, progress)
                case _:
                    read = readers.images(found, options, spool, classes, progress)
    finally:
        progress.clear()
    left = ", ".join(f"{count} {suffix}" for suffix, count in sorted(found.left_out.items()))
    notes = [*read.notes, *classes.notes(), *([f"left out by their suffix: {left}"] if left else [])]
    report = ImportReport(
        kind=found.kind,
        files=len(found.files) - len(read.refused),
        mapping=read.mapping,
        recordings=tuple(one for one in read.writer.recordings.values() if one.samples),
        classes=classes.names(),
        names=classes.by_code(),
        notes=tuple(notes),
        refused=read.refused,
    )
    return report, read.writer


def _size(file: ImportedFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError as error:
        raise Misconfigured(f"{file.path}: {error.strerror or error}") from None
