"""A knowledge graph on disk: facts as lines of text, features and masks as npz; readers check everything.

- **Facts**: head, relation, tail, separated by tabs, UTF-8, no header. Blank lines and lines that begin with
  ``#`` are skipped, so no head's name begins with ``#``.
- **Features**: one npz a modality, with ``entity`` (n,) names and ``values`` (n, F).
- **Masks**: an npz with ``entity`` (n,), ``modality`` (M,) names and ``present`` (n, M) bool.

Shapes: n entities of a file, F feature dim, M modalities.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from models import npz
from models.contract import FloatArray
from models.knowledge_graph.data.graph import BoolArray
from models.knowledge_graph.data.name_normalization import MAX_BYTES, clean, shown, words_of
from models.tensors import write_npz
from protocol.errors import Misconfigured

Triple = tuple[str, str, str]
"""Head, relation, tail, by name."""
_COLUMNS: Final = ("head", "relation", "tail")
_COMMENT: Final = "#"
_MARK: Final = b"\xef\xbb\xbf"
"""Some editors write it before a text in UTF-8."""
_MAX_LINE: Final = 3 * MAX_BYTES + 256
_MAX_MODALITIES: Final = 64


@dataclass(frozen=True)
class Bounds:
    """Limits of reading a file.

    Attributes:
        lines: of facts, with blank ones and comments.
        entities: rows of features or masks.
        width: values of an entity's features, F.
        npz_bytes: all arrays of an npz, unpacked.
        entities_from: the setting that ``entities`` follows from, for messages.
    """

    lines: int = 10_000_000
    entities: int = 1 << 24
    width: int = 8192
    npz_bytes: int = 1 << 30
    entities_from: str = ""


BOUNDS: Final = Bounds()


@dataclass(frozen=True)
class Facts:
    """A file's facts.

    Attributes:
        triples: each once, in the file's order.
        lines: of the file, with blank ones and comments.
        duplicates: number of repeated facts that were dropped.
    """

    triples: tuple[Triple, ...]
    lines: int
    duplicates: int


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of some entities in one modality: ``entities`` (n names), ``values_nF`` float32."""

    entities: tuple[str, ...]
    values_nF: FloatArray


@dataclass(frozen=True, eq=False)
class Masks:
    """Which features may be used: ``entities`` (n names), ``modalities`` (M names), ``present_nM``."""

    entities: tuple[str, ...]
    modalities: tuple[str, ...]
    present_nM: BoolArray


def read_triples(path: Path, bounds: Bounds = BOUNDS) -> Facts:
    """The facts of a file.

    Raises:
        Misconfigured: it cannot be read, is too long, or a line is no fact; names file and line.
    """
    found: dict[Triple, None] = {}
    lines = facts = 0
    try:
        with path.open("rb") as file:
            for triple in facts_in(lines_of(file, path), path, bounds):
                lines += 1
                if triple is not None:
                    facts += 1
                    found[triple] = None
    except OSError as error:
        raise Misconfigured(f"{path}: cannot be read as facts: {error.strerror}") from None
    return Facts(tuple(found), lines, facts - len(found))


def lines_of(file: IO[bytes], path: Path, before: int = 0) -> Iterator[bytes]:
    """Each line from here on, never more than :data:`_MAX_LINE` bytes of one in memory.

    Args:
        file: open for reading.
        path: of it, for messages.
        before: lines that were read already.

    Raises:
        Misconfigured: a line is longer.
    """
    number = before
    while line := file.readline(_MAX_LINE + 1):
        number += 1
        if len(line) > _MAX_LINE:
            raise Misconfigured(f"{path}: line {number} has over {_MAX_LINE} bytes; is it a text file?")
        yield line


def facts_in(
    lines: Iterable[bytes], path: Path, bounds: Bounds = BOUNDS, before: int = 0
) -> Iterator[Triple | None]:
    """The fact of each line; None for a blank line or a comment.

    Raises:
        Misconfigured: as :func:`read_triples`.
    """
    for number, line in enumerate(lines, before + 1):
        if number > bounds.lines:
            raise Misconfigured(f"{path}: more than {bounds.lines} lines; split the file")
        yield _triple(line.removeprefix(_MARK) if number == 1 else line, path, number)


def _triple(line: bytes, path: Path, number: int) -> Triple | None:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise Misconfigured(f"{path}: line {number} is not UTF-8: {error.reason}") from None
    if not text.strip() or text.startswith(_COMMENT):
        return None
    cells = text.rstrip("\r\n").split("\t")
    if len(cells) != len(_COLUMNS):
        raise Misconfigured(
            f"{path}: line {number} has {len(cells)} columns, not 3 (head, relation, tail, separated by tabs)"
        )
    head, relation, tail = (
        _name(cell, f"{path}: line {number}, {column}") for column, cell in zip(_COLUMNS, cells, strict=True)
    )
    return head, relation, tail


def _name(cell: str, where: str) -> str:
    try:
        return clean(cell)
    except ValueError as error:
        raise Misconfigured(f"{where} {error}") from None


def write_triples(path: Path, triples: Iterable[Triple]) -> None:
    """Write facts atomically.

    Raises:
        ValueError: :func:`read_triples` would not read a name back unchanged.
    """
    lines = []
    for triple in triples:
        if any(clean(name) != name for name in triple) or triple[0].startswith(_COMMENT):
            raise ValueError(f"fact {triple}: a name that could not be read back")
        lines.append("\t".join(triple) + "\n")
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    os.replace(part, path)  # noqa: PTH105 - as in models.tensors


def read_features(path: Path, bounds: Bounds = BOUNDS) -> FeatureTable:
    """One modality's features.

    Raises:
        Misconfigured: it cannot be read, is too large, or a key holds invalid data; names file and key.
    """
    arrays = _read(path, ("entity", "values"), "features", bounds)
    entities = _names(path, "entity", arrays["entity"], bounds.entities, bounds.entities_from)
    values, wanted = arrays["values"], f"({len(entities)}, F) finite numbers, F from 1 to {bounds.width}"
    fits = values.ndim == 2 and len(values) == len(entities) and 1 <= values.shape[1] <= bounds.width  # noqa: PLR2004 - n, F
    if not fits or values.dtype.kind not in "biuf":
        raise Misconfigured(f"{path}: key 'values' is {values.dtype} {values.shape}, not {wanted}")
    with np.errstate(over="ignore", invalid="ignore"):  # checked in the next line
        values_nF = np.ascontiguousarray(values, np.float32)
    if bad := np.flatnonzero(~np.isfinite(values_nF).all(axis=1)).tolist():
        raise Misconfigured(
            f"{path}: key 'values': row {bad[0]} ({shown(entities[bad[0]])}) is not finite in float32"
        )
    return FeatureTable(entities, values_nF)


def write_features(path: Path, features: FeatureTable) -> None:
    """Write one modality's features; equal features give equal bytes."""
    write_npz(path, {"entity": np.array(features.entities, np.str_), "values": features.values_nF})


def read_masks(path: Path, bounds: Bounds = BOUNDS) -> Masks:
    """Masks.

    Raises:
        Misconfigured: as :func:`read_features`.
    """
    arrays = _read(path, ("entity", "modality", "present"), "masks", bounds)
    entities = _names(path, "entity", arrays["entity"], bounds.entities, bounds.entities_from)
    modalities = _names(path, "modality", arrays["modality"], _MAX_MODALITIES)
    present, wanted = arrays["present"], (len(entities), len(modalities))
    if present.shape != wanted or present.dtype != np.bool_:
        raise Misconfigured(f"{path}: key 'present' is {present.dtype} {present.shape}, not bool {wanted}")
    return Masks(entities, modalities, present)


def write_masks(path: Path, masks: Masks) -> None:
    """Write masks; equal masks give equal bytes."""
    names = {"entity": masks.entities, "modality": masks.modalities}
    arrays: dict[str, NDArray[Any]] = {key: np.array(of, np.str_) for key, of in names.items()}
    write_npz(path, arrays | {"present": masks.present_nM})


def _read(path: Path, keys: Sequence[str], what: str, bounds: Bounds) -> Mapping[str, NDArray[Any]]:
    try:
        arrays = npz.read(path, bounds.npz_bytes)
    except (OSError, npz.BadNpz) as error:
        words = getattr(error, "strerror", None) or error  # the text of an OSError, without number and path
        raise Misconfigured(f"{path}: cannot be read as {what} (npz): {words}") from None
    if wrong := sorted(set(keys) ^ set(arrays)):
        words = "is missing" if wrong[0] in keys else "is not known"
        raise Misconfigured(f"{path}: key {wrong[0][:100]!r} {words}; {what} hold {', '.join(keys)}")
    return arrays


def _names(path: Path, key: str, array: NDArray[Any], most: int, why: str = "") -> tuple[str, ...]:
    """Names from an array of text, each once."""
    try:
        words = words_of(array)
    except ValueError as error:
        raise Misconfigured(f"{path}: key {key!r} {error}") from None
    if len(words) > most:
        raise Misconfigured(
            f"{path}: key {key!r} has {len(words)} names, at most {most} are read{why and f', {why}'}"
        )
    found: dict[str, int] = {}
    for row, word in enumerate(words):
        name = _name(word, f"{path}: key {key!r}, row {row}")
        if name in found:
            raise Misconfigured(f"{path}: key {key!r}: {shown(name)} is in rows {found[name]} and {row}")
        found[name] = row
    return tuple(found)
