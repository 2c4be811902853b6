"""Guesses what the columns of a table are, from their names and first cells. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from lichen.data_import.import_options import DEFAULT_NAMES, ImportOptions
from lichen.data_import.tables.times import is_time
from protocol.errors import Misconfigured
from protocol.tasks.task import RESERVED

_TIMES: Final = ("t", "time", "timestamp", "ts", "datetime", "epoch", "date")
_LABELS: Final = ("label", "labels", "class", "activity", "category", "gesture", "ground_truth", "gt")
_DEVICES: Final = ("person", "user", "subject", "participant", "patient", "device", "node")
_COUNTERS: Final = frozenset({"", "index", "id", "row", "no", "number", "unnamed_0", "sample", "line"})
_NUMBERED: Final = frozenset({"id", "name", "no", "number", "nr"})
_SHORT: Final = {"a": "acc", "g": "gyro", "w": "gyro", "m": "mag", "": "xyz"}
"""Names of sensors for columns such as ``ax``, ``gy`` and ``z``."""
_AXIS: Final = re.compile(r"(.*?)[\s._/:-]*([xyzw]|[0-9]{1,4})", re.IGNORECASE)
_UNIT: Final = re.compile(r"\s*[\[(][^\])]*[\])]\s*$")
_MOST_MODALITIES: Final = 16
"""Of a task."""
_MOST_LETTERS: Final = 32
_SHOWN: Final = 24
_TARGET: Final = "target."


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns.

    Attributes:
        time: None: rows have none.
        label: None: rows have no class.
        device: None: all rows are of one recording.
        modalities: columns by modality, in the order of channels.
        targets: columns by further target.
        left_out: the others, each with the reason.
    """

    time: str | None
    label: str | None
    device: str | None
    modalities: Mapping[str, tuple[str, ...]]
    targets: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns with the samples' values."""
        return tuple(dict.fromkeys(one for columns in self.modalities.values() for one in columns))

    @property
    def words(self) -> tuple[str, ...]:
        """Columns that are read as text, the times too: they may be ISO 8601."""
        return tuple(
            dict.fromkeys(one for one in (self.time, self.label, self.device, *self.targets.values()) if one)
        )


def guess(
    path: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    options: ImportOptions,
    modality: str | None = None,
) -> Columns:
    """The roles of a table's columns.

    Args:
        path: of the table, for messages.
        names: its columns.
        rows: its first rows as text, to see which columns hold numbers.
        options: roles that the command line gives; they are not guessed.
        modality: of all columns with values, if the file's path names it.

    Raises:
        Misconfigured: a named column does not exist, or no column holds values.
    """
    _require(path, names, options)
    cells = {name: [row[at].strip() for row in rows if at < len(row)] for at, name in enumerate(names)}
    targets = dict(options.targets) or {n.removeprefix(_TARGET): n for n in names if n.startswith(_TARGET)}
    taken = {*targets.values(), *(one for columns in options.modalities.values() for one in columns)}
    free = [name for name in names if name not in taken]
    time = options.time or (None if options.examples or options.rate_hz else _time(free, cells))
    label = options.label or _first([n for n in free if n != time], _LABELS, cells)
    device = options.device or _first([n for n in free if n not in {time, label}], _DEVICES, cells)
    rest = [name for name in free if name not in {time, label, device}]
    values = [name for name in rest if _holds_numbers(cells[name]) and _word(name) not in _COUNTERS]
    left_out = {name: _why(name, cells[name]) for name in rest if name not in values}
    if options.modalities:
        left_out |= dict.fromkeys(values, "not named by --modality")
        modalities: Mapping[str, tuple[str, ...]] = options.modalities
    elif modality is not None:
        modalities = {modality: tuple(values)} if values else {}
    elif options.examples and not any("." in name for name in values):
        modalities = {options.name or DEFAULT_NAMES["table"]: tuple(values)} if values else {}
    else:
        modalities = _grouped(values)
    if not modalities:
        raise Misconfigured(
            f"{path}: no column holds numbers to learn from (columns: {_listed(names)}); "
            "name them: --modality acc=acc_x,acc_y,acc_z"
        )
    return Columns(time, label, device, modalities, targets, left_out)


def _require(path: Path, names: Sequence[str], options: ImportOptions) -> None:
    """Refuse columns that the table does not have."""
    wanted = [("--time", options.time), ("--label", options.label), ("--device", options.device)]
    wanted += [("--modality", one) for columns in options.modalities.values() for one in columns]
    wanted += [("--target", one) for one in options.targets.values()]
    for option, name in wanted:
        if name is not None and name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Misconfigured(f"{option}: {path} has no column {name!r} (columns: {_listed(names)}){hint}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _word(name: str) -> str:
    """A column's name in small letters, its parts joined by ``_``, without a unit in brackets."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _UNIT.sub("", name))
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def _time(names: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str | None:
    words = {name: _word(name) for name in names if all(is_time(cell) for cell in cells[name] if cell)}
    for wanted in _TIMES:
        for name, word in words.items():
            if word == wanted or word in {f"{wanted}_{unit}" for unit in ("s", "ms", "us", "ns", "seconds")}:
                return name
    parts = {"time", "timestamp", "datetime"}
    return next((name for name, word in words.items() if parts & {*word.split("_")}), None)


def _first(names: Sequence[str], wanted: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str | None:
    """The first column whose name is a wanted word, or one with ``_id`` or ``_label`` after it."""
    words = {name: _word(name) for name in names if any(cells[name]) or not cells[name]}
    for one in wanted:
        for name, word in words.items():
            head, _, tail = word.partition("_")
            if word == one or (head == one and tail in {*_NUMBERED, *_LABELS}):
                return name
    return None


def _holds_numbers(cells: Sequence[str]) -> bool:
    """Whether most filled cells are numbers: a cell that is none is reported, with its line.

    Also true of a column without any.
    """
    filled = [cell for cell in cells if cell]
    return 2 * sum(map(_is_number, filled)) > len(filled) or not filled


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _why(name: str, cells: Sequence[str]) -> str:
    return "holds text" if not _holds_numbers(cells) else f"counts rows, by its name {name!r}"


def _grouped(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Columns that differ in their last letter or number alone are the channels of one modality."""
    bases: dict[str, list[str]] = {}
    for name in names:
        bases.setdefault(_base(name), []).append(name)
    groups: dict[str, list[str]] = {}
    single: list[str] = []
    for base, columns in bases.items():
        if len(columns) > 1 or "." in columns[0]:
            groups.setdefault(modality_name(_SHORT.get(base.lower(), base)), []).extend(columns)
        else:
            single += columns
    if len(groups) + len(single) > _MOST_MODALITIES:
        return {name: tuple(columns) for name, columns in groups.items()} | {"values": tuple(single)}
    for name in single:
        groups.setdefault(modality_name(_UNIT.sub("", name)), []).append(name)
    return {name: tuple(columns) for name, columns in groups.items()}


def _base(name: str) -> str:
    if "." in name:
        return name.partition(".")[0]
    plain = _UNIT.sub("", name).strip()
    found = _AXIS.fullmatch(plain)
    return plain if found is None else found[1]


def modality_name(words: str) -> str:
    """Words as the name of a modality: letters, digits, ``_`` and ``-``, beginning with a letter."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", words).strip("_-").lower()
    begun = plain if plain[:1].isalpha() else f"m_{plain}".rstrip("_")
    return (f"{begun}_values" if begun in RESERVED else begun)[:_MOST_LETTERS]
