"""The files of an import, each with the device and the class that its path or a labels file gives it."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lichen.data_import.import_options import MaterialKind
from lichen.data_import.tables import table_rows
from protocol.errors import Misconfigured

SUFFIXES: Final[Mapping[MaterialKind, tuple[str, ...]]] = {
    "table": table_rows.SUFFIXES,
    "sound": (".wav", ".wave"),
    "image": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"),
}
_LABEL_FILES: Final = ("labels.csv", "labels.tsv")
_FIELDS: Final = ("device", "label", "modality")
_FILE_COLUMNS: Final = ("file", "path", "filename", "file_name", "image", "name")
_LABEL_COLUMNS: Final = ("label", "class", "category")
_DEVICE_COLUMNS: Final = ("device", "person", "user", "subject", "speaker", "participant")


@dataclass(frozen=True)
class ImportedFile:
    """One file of the import; None: nothing gives it."""

    path: Path
    device: str | None = None
    label: str | None = None
    modality: str | None = None


@dataclass(frozen=True)
class FoundFiles:
    """The files of an import.

    Attributes:
        kind: of all of them.
        files: sorted by path.
        why: where devices and classes are from, for people.
        left_out: how many files of other suffixes are there, by suffix.
    """

    kind: MaterialKind
    files: tuple[ImportedFile, ...]
    why: str
    left_out: Mapping[str, int]


def listing(
    paths: Sequence[Path], kind: MaterialKind | None, pattern: str | None, labels: Path | None
) -> FoundFiles:
    """Find the files, and what their paths say.

    Args:
        paths: files and folders; folders are searched to any depth.
        kind: of the files; None: that of all of them.
        pattern: such as ``{device}/{label}/*``, compared with the end of a path; None: by its folders.
        labels: a table with columns for the file, its class and its device; None: ``labels.csv`` in a folder.

    Raises:
        Misconfigured: a path does not exist, there is no file or several kinds, a path does not fit the
            pattern, or the labels file names a file that is missing.
    """
    found = [*_found(paths)]
    if labels is None and kind != "table":
        labels = next(
            (root / name for root in paths for name in _LABEL_FILES if (root / name).is_file()), None
        )
        if (
            kind is None
            and labels is not None
            and {_kind(path) for path, _ in found if path != labels} == {"table"}
        ):
            labels = None  # a table among tables
    of_kinds = Counter(_kind(path) for path, _ in found if path != labels)
    if len(of_kinds.keys() - {None}) > 1 and not any(_is_table(path) for path, _ in found if path != labels):
        del of_kinds["table"]  # notes beside images or sound
    chosen = kind or _one_kind(paths, of_kinds)
    files = [(path, root) for path, root in found if _kind(path) == chosen and path != labels]
    if not files:
        raise Misconfigured(f"{', '.join(map(str, paths))}: no file of {', '.join(SUFFIXES[chosen])}")
    left = Counter(
        path.suffix.lower() or "none" for path, _ in found if _kind(path) != chosen and path != labels
    )
    if labels is not None:
        return FoundFiles(chosen, _by_table(labels, [path for path, _ in files]), f"from {labels}", left)
    if pattern is not None:
        return FoundFiles(chosen, tuple(_by_pattern(pattern, files)), f"by --pattern {pattern!r}", left)
    folders, why = _by_folders(chosen, files)
    return FoundFiles(chosen, folders, why, left)


def _found(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each file with the path that was named."""
    for root in paths:
        if not root.exists():
            raise Misconfigured(f"{root}: there is no such file or folder")
        if not root.is_dir():
            yield root, root.parent
            continue
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from ((Path(folder) / name, root) for name in sorted(names) if not name.startswith("."))


def _kind(path: Path) -> MaterialKind | None:
    suffix = path.suffix.lower()
    return next((kind for kind, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def _is_table(path: Path) -> bool:
    """Whether a file is surely a table; text may be a note."""
    return _kind(path) == "table" and path.suffix.lower() != ".txt"


def _one_kind(paths: Sequence[Path], found: Mapping[MaterialKind | None, int]) -> MaterialKind:
    """The only kind of files that is there."""
    kinds = {kind: count for kind, count in found.items() if kind is not None}
    if len(kinds) == 1:
        return next(iter(kinds))
    where = ", ".join(map(str, paths))
    if not kinds:
        every = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise Misconfigured(f"{where}: nothing to import: no file of {every}")
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    raise Misconfigured(f"{where}: {counts}: say which with --kind")


def _by_folders(
    kind: MaterialKind, files: Sequence[tuple[Path, Path]]
) -> tuple[tuple[ImportedFile, ...], str]:
    """Class by the folder, device by the one above it; of tables, one recording a file."""
    parts = [path.relative_to(root).parts[:-1] for path, root in files]
    if kind == "table":
        return tuple(ImportedFile(path) for path, _ in files), ""
    depth = min(len(one) for one in parts)
    if depth == 0 or max(len(one) for one in parts) != depth:
        named = tuple(ImportedFile(path) for path, _ in files)
        return named, "no class: files lie at several depths" if depth else "no class: files lie in no folder"
    if depth == 1:
        named = tuple(ImportedFile(path, None, one[-1]) for (path, _), one in zip(files, parts, strict=True))
        return named, "class by the folder"
    named = tuple(ImportedFile(path, one[-2], one[-1]) for (path, _), one in zip(files, parts, strict=True))
    return named, "class by the last folder, recording by the one above it"


def _by_pattern(pattern: str, files: Sequence[tuple[Path, Path]]) -> Iterator[ImportedFile]:
    compiled = _compiled(pattern)
    for path, root in files:
        inside = path.relative_to(root).with_suffix("").as_posix()
        found = compiled.search(f"/{inside}")
        if found is None:
            raise Misconfigured(f"--pattern {pattern!r}: {inside!r} (without its suffix) does not fit it")
        named = found.groupdict()
        yield ImportedFile(path, named.get("device"), named.get("label"), named.get("modality"))


def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of ``{device}``, ``{label}``, ``{modality}`` and ``*`` as one for the end of a path."""
    parts = re.split(r"(\{[^}]*\}|\*)", pattern)
    names = [part[1:-1] for part in parts if part.startswith("{")]
    for name in names:
        if name not in _FIELDS or names.count(name) > 1:
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise Misconfigured(
                f"--pattern {pattern!r}: {{{name}}}: each of {known} once, and * for the rest"
            )
    if not names:
        raise Misconfigured(f"--pattern {pattern!r}: it has neither {{label}} nor {{device}}")
    words = (
        f"(?P<{part[1:-1]}>[^/]+?)" if part.startswith("{") else "[^/]*" if part == "*" else re.escape(part)
        for part in parts
    )
    return re.compile(f"/{''.join(words)}\\Z")


def _by_table(file: Path, paths: Sequence[Path]) -> tuple[ImportedFile, ...]:
    """Files with the classes and devices of a table; each row must name a file that is there."""
    try:
        start = table_rows.start(file)
    except OSError as error:
        raise Misconfigured(f"--labels {file}: {error.strerror or error}") from None
    words = {name.strip().lower(): name for name in start.names}
    columns = {
        "file": next((words[one] for one in _FILE_COLUMNS if one in words), None),
        "label": next((words[one] for one in _LABEL_COLUMNS if one in words), None),
        "device": next((words[one] for one in _DEVICE_COLUMNS if one in words), None),
    }
    name = columns.pop("file")
    if name is None or columns["label"] is None:
        raise Misconfigured(
            f"{file}: columns 'file' and 'label' are needed, and 'device' may be there (columns: "
            f"{', '.join(start.names[:12])})"
        )
    wanted = {key: column for key, column in columns.items() if column is not None}
    known = {path.resolve(): path for path in paths}
    found = []
    for chunk in table_rows.chunks(start, (), (name, *wanted.values()), lambda _count: None):
        cells = chunk[name]
        for at, word in enumerate(cells.words()):
            path = known.get((file.parent / word).resolve())
            if path is None:
                raise Misconfigured(
                    f"{file}: {cells.place(at)}, column {name!r}: no file {word!r} is imported"
                )
            named = {key: chunk[column].words()[at] or None for key, column in wanted.items()}
            found.append(ImportedFile(path, named.get("device"), named["label"]))
    return tuple(found)
