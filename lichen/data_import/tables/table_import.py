"""Tables -> recordings, a chunk of rows at a time.

Shapes: n rows of one device in a chunk, C channels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.import_options import ImportOptions
from lichen.data_import.listing import ImportedFile
from lichen.data_import.output.forms import Form
from lichen.data_import.output.recordings import RecordingWriter
from lichen.data_import.tables import columns, table_rows, times
from lichen.data_import.tables.cells import Cells
from lichen.data_import.tables.columns import Columns
from lichen.data_import.tables.table_rows import Progress, TableStart
from lichen.data_import.tables.times import TimeUnit
from models.data.labels.labels import PREFIX
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL

SESSION_GAP_S: Final = 10.0
"""Between two sessions of one recording: longer than a usual window, so that none spans both."""
BACK_S: Final = 1.0
"""Time that goes back by more than this begins a session; less is disorder, and is sorted when it is read."""


@dataclass
class DeviceTime:
    """The times of one device while its rows are read.

    Attributes:
        last: the newest time in the table.
        shift: is added to the times in the table.
        rows: so many were read.
    """

    last: float = -np.inf
    shift: float = 0.0
    rows: int = 0


@dataclass
class TableImport:
    """Reads tables into a writer.

    Attributes:
        options: of the command line.
        writer: takes the samples.
        found: the roles of columns, and the unit of times, by the names of a table's columns.
        sessions: so many began because time went back; ``first_session`` is the place of one.
        shortened: gaps over ``longest_gap_s``.
        unlabelled, gaps: rows without a label, and empty cells by modality.
    """

    options: ImportOptions
    writer: RecordingWriter
    found: dict[tuple[str, ...], tuple[Columns, TimeUnit | None]] = field(default_factory=dict)
    sessions: int = 0
    first_session: str = ""
    shortened: int = 0
    rows: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    _clocks: dict[str, DeviceTime] = field(default_factory=dict)
    _dealt: int = 0

    def add(self, file: ImportedFile, progress: Progress) -> None:
        """Read one table.

        Raises:
            Misconfigured: it is damaged, or a cell does not fit its column; names file, line and column.
            OSError: it cannot be read.
        """
        table = table_rows.start(file.path, self.options.columns)
        chosen, unit = self._roles(table, file)
        for chunk in table_rows.chunks(table, chosen.numbers, chosen.words, progress):
            self._chunk(file, chunk, chosen, unit)

    def _roles(self, table: TableStart, file: ImportedFile) -> tuple[Columns, TimeUnit | None]:
        key = (*table.names, file.modality or "")
        if key not in self.found:
            modality = None if file.modality is None else columns.modality_name(file.modality)
            chosen = columns.guess(table.path, table.names, table.rows, self.options, modality)
            self.found[key] = chosen, self._unit(table, chosen)
        return self.found[key]

    def _unit(self, table: TableStart, chosen: Columns) -> TimeUnit | None:
        if chosen.time is None:
            if self.options.rate_hz is None and not self.options.examples:
                raise Misconfigured(
                    f"{table.path}: no column looks like a time (columns: {', '.join(table.names[:12])}): "
                    "name it with --time; or say --rate-hz, if rows come at a fixed rate; or --examples, if "
                    "each row is an example of its own"
                )
            return None
        at = table.names.index(chosen.time)
        cells = [row[at].strip() for row in table.rows]
        if chosen.device is not None and cells:  # steps between rows of one device
            of = table.names.index(chosen.device)
            first = table.rows[0][of]
            cells = [row[at].strip() for row in table.rows if row[of] == first]
        return times.guess(chosen.time, cells, self.options.unit)

    def _chunk(
        self, file: ImportedFile, chunk: Mapping[str, Cells], chosen: Columns, unit: TimeUnit | None
    ) -> None:
        any_cells = next(iter(chunk.values()))
        count = len(any_cells.cells)
        self.rows += count
        seconds = None if unit is None or chosen.time is None else unit.seconds(chunk[chosen.time])
        values = {name: _values(chunk, listed) for name, listed in chosen.modalities.items()}
        label = self._labels(file, chunk, chosen, count)
        targets = {
            name: self.writer.classes.values_of(chunk[column], f"{PREFIX}/{name}")
            for name, column in chosen.targets.items()
        }
        for device, rows in self._devices(file, chunk, chosen, count).items():
            own = {name: x[rows] for name, x in values.items()}
            if self.options.examples:
                self._examples(device, own, label[rows])
                continue
            t = self._times(file, device, any_cells, rows, None if seconds is None else seconds[rows])
            self._samples(device, t, own)
            if chosen.label is not None or file.label is not None:
                self.writer.labels(device, t, label[rows])
            for name, y in targets.items():
                self.writer.target(device, name, t, y[rows])

    def _labels(
        self, file: ImportedFile, chunk: Mapping[str, Cells], chosen: Columns, count: int
    ) -> NDArray[np.int32]:
        if chosen.label is not None:
            try:
                return self.writer.classes.codes_of(chunk[chosen.label].words())
            except Misconfigured as error:
                raise Misconfigured(f"{file.path}: column {chosen.label!r}: {error}") from None
        return np.full(count, -1 if file.label is None else self.writer.classes.code(file.label), np.int32)

    def _devices(
        self, file: ImportedFile, chunk: Mapping[str, Cells], chosen: Columns, count: int
    ) -> dict[str, NDArray[np.int64]]:
        """Rows by device, in the order of first mention."""
        if self.options.deal is not None:
            of = np.random.default_rng([self.options.seed, self._dealt]).integers(
                self.options.deal, size=count
            )
            self._dealt += 1
            return {f"part-{at + 1}": np.flatnonzero(of == at) for at in range(self.options.deal)}
        if file.device is not None:
            return {file.device: np.arange(count)}
        if chosen.device is None:
            return {file.path.stem: np.arange(count)}
        cells = chunk[chosen.device]
        words = np.array(cells.words(), np.str_)
        empty = np.flatnonzero(words == "")
        if len(empty):
            raise Misconfigured(
                f"{file.path}: {cells.place(int(empty[0]))}, column {chosen.device!r}: it is empty: "
                "whose row is it?"
            )
        names, first, inverse = np.unique(words, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return {str(names[at]): np.flatnonzero(inverse == at) for at in order}

    def _times(
        self,
        file: ImportedFile,
        device: str,
        cells: Cells,
        rows: NDArray[np.int64],
        seconds: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        """(n,) times in the recording: sessions follow each other, if time goes back."""
        # files of several modalities share the device's time
        clock = self._clocks.setdefault(
            device if file.modality is None else f"{device}/{file.modality}", DeviceTime()
        )
        if seconds is None:
            assert self.options.rate_hz is not None  # noqa: S101 - rows have a rate if they have no time
            t = (clock.rows + np.arange(len(rows))) / self.options.rate_hz
            clock.rows += len(rows)
            return t
        steps = np.diff(seconds, prepend=seconds[0] if np.isinf(clock.last) else clock.last)
        back = steps < -BACK_S
        if back.any():
            place = f"{file.path}: {cells.place(int(rows[np.flatnonzero(back)[0]]))}"
            if file.modality is not None:
                raise Misconfigured(
                    f"{place}: time goes back by {-steps[back][0]:.6g} s; files of several modalities share "
                    "one time: name the column of devices or sessions with --device"
                )
            self.sessions += int(back.sum())
            self.first_session = self.first_session or place
        moves = np.where(back, SESSION_GAP_S - steps, 0.0)
        longest = self.options.longest_gap_s
        if longest is not None:
            long = steps > longest
            self.shortened += int(long.sum())
            moves = np.where(long, longest - steps, moves)
        shift = clock.shift + np.cumsum(moves)
        clock.last, clock.shift = float(seconds[-1]), float(shift[-1])
        found: NDArray[np.float64] = seconds + shift
        return found

    def _samples(
        self, device: str, t: NDArray[np.float64], values: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Each modality has the rows in which all its cells are filled."""
        for name, x in values.items():
            filled = np.isfinite(x).all(axis=1)
            self.gaps[name] += int((~filled).sum())
            self.writer.samples(device, name, t[filled], x[filled], Form())

    def _examples(
        self, device: str, values: Mapping[str, NDArray[np.float32]], codes: NDArray[np.int32]
    ) -> None:
        recording = self.writer.of(device)
        example_s = self.writer.example_s or 1.0
        middle = (np.arange(len(codes), dtype=np.float64) + recording.examples + 0.5) * example_s
        for name, x in values.items():
            self.gaps[name] += int((~np.isfinite(x).all(axis=1)).sum())
            self.writer.samples(device, name, middle, x, Form("vector"))
        self.writer.label_examples(device, codes)


def _values(chunk: Mapping[str, Cells], listed: Sequence[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # beyond float32 is infinite: a missing sample
        return np.stack([chunk[column].numbers() for column in listed], axis=1).astype(np.float32)


def labelled(chosen: Columns) -> str:
    """Where classes are from, for people."""
    return chosen.label or f"none: no column is called {LABEL!r}, class or activity (--label names it)"
