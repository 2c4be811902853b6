"""The ``serial`` source: sensors that print lines on a serial port, by USB or by wire.

A line that does not match the configuration is counted and shown, and the next one is read.
"""

import errno
import os
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from edge_agent.sources.base import REGISTRY, SourceKind, require_known, unit_doubts
from edge_agent.sources.payloads import BadPayload, shown
from edge_agent.sources.reader_thread import ThreadOutlet, read_in_thread
from edge_agent.sources.serial.line_formats import LineFormat, LineReader, SerialModality
from edge_agent.sources.serial.line_splitter import Lines
from edge_agent.sources.serial.port import Flow, Parity, SerialLine, open_port, require_baud
from models.data.streams.batches import Batch
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.settings.load import ConfigPath, Section

LOOK_S: Final = 1.0
"""Seconds between two attempts to open a missing port."""
_READ_BYTES: Final = 1 << 14
_ABSENT: Final = (errno.ENOENT, errno.ENODEV, errno.ENXIO)


class SerialSettings(Section):
    """Keys of ``[[source]] kind = "serial"``."""

    port: ConfigPath
    """A stable name: ``/dev/serial/by-id/...``."""
    modalities: Annotated[dict[str, SerialModality], Field(min_length=1, max_length=16)]
    baud: int = 9600
    data_bits: Literal[7, 8] = 8
    parity: Parity = "none"
    stop_bits: Literal[1, 2] = 1
    flow: Flow = "none"
    format: LineFormat = "csv"
    separator: Annotated[str, Field(max_length=8)] = ","
    """Of csv; empty: any white space."""
    words: dict[str, float] = Field(default_factory=dict)
    """Cells that are words -> numbers, as ``{ ON = 1, OFF = 0 }``."""
    max_line_bytes: Annotated[int, Field(ge=16, le=65536)] = 1024
    wire_time: bool = True
    """True: the time of a line is that of its first byte, computed from ``baud``. False: its arrival, for
    sensors without a real ``baud``, as those that are USB devices themselves."""

    @model_validator(mode="after")
    def _format_fits(self) -> Self:
        for name, modality in self.modalities.items():
            if (modality.paths is not None) != (self.format == "json"):
                key = "paths" if self.format == "json" else "columns"
                raise ValueError(f"modalities.{name}: format {self.format!r} takes {key}")
        return self


class Serial:
    """One port. Calling :meth:`samples` again opens it again."""

    def __init__(self, settings: SerialSettings, known: Sequence[str] | None, clock: Clock) -> None:
        require_known(settings.modalities, known)
        require_baud(settings.baud)
        self._settings = settings
        self._clock = clock
        self._line = SerialLine(
            settings.baud, settings.data_bits, settings.parity, settings.stop_bits, settings.flow
        )
        self._reader = LineReader(settings.modalities, settings.format, settings.separator, settings.words)
        self.name = f"serial {settings.port}"
        self.channels = {name: m.width for name, m in settings.modalities.items()}
        self.counters: dict[str, float] = {}
        self._doing = "not started"
        self._bad = ""

    @property
    def state(self) -> str:
        """See :class:`edge_agent.sources.base.ReportsStatus`; with the newest line that could not be read."""
        return self._doing + (f"; last bad line: {self._bad}" if self._bad else "")

    def doubts(self, task: Task) -> list[str]:
        """Units that differ from the task's, and a missing port."""
        words = unit_doubts(self.name, {n: m.unit for n, m in self._settings.modalities.items()}, task)
        if not self._settings.port.exists():
            words.append(f"{self.name}: port is missing; the agent waits for it")
        return words

    def samples(self) -> AsyncIterator[Batch]:
        """Wait for the port, then yield; see :class:`edge_agent.sources.base.Source`."""
        return read_in_thread(self._work, self.name, self.counters)

    def _work(self, outlet: ThreadOutlet) -> None:
        """The blocking work, run in a thread."""
        fd = self._opened(outlet)
        if fd is None:
            return
        try:
            self._read(fd, outlet)
        except OSError as error:
            self._doing = f"lost {self._settings.port}: {error.strerror or error}"
            raise
        finally:
            os.close(fd)

    def _opened(self, outlet: ThreadOutlet) -> int | None:
        """The open port, as soon as it exists; None if the agent stops first.

        Raises:
            OSError: it exists and cannot be used.
        """
        while True:
            try:
                return open_port(self._settings.port, self._line)
            except OSError as error:
                if error.errno == errno.EACCES:
                    words = "access denied for this user: add it to the port's group, often dialout"
                    raise OSError(errno.EACCES, words, str(self._settings.port)) from None
                if error.errno not in _ABSENT:
                    raise
                self._doing = f"waits for {self._settings.port}: {error.strerror}"
            if outlet.wait(LOOK_S):
                return None

    def _read(self, fd: int, outlet: ThreadOutlet) -> None:
        settings = self._settings
        lines = Lines(self._line.byte_s if settings.wire_time else 0.0, settings.max_line_bytes)
        self._doing = f"reads {settings.port} at {settings.baud} baud"
        while not outlet.stopped:
            if not outlet.readable(fd, LOOK_S):
                continue
            try:
                block = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not block:
                raise OSError(f"{settings.port}: the device is gone")
            before = lines.too_long
            for t, line in lines.feed(block, self._clock.wall()):
                self._take(t, line, outlet)
            if lines.too_long > before:
                self._count("too_long_lines", lines.too_long - before)
                self._bad = f"longer than {settings.max_line_bytes} bytes; is baud right?"

    def _take(self, t: float, line: bytes, outlet: ThreadOutlet) -> None:
        try:
            rows = self._reader.rows(line)
        except BadPayload as error:
            self._count("bad_lines")
            self._bad = f"{error} ({shown(line)})"
            return
        if not rows:
            self._count("other_lines")
        for name, values in rows.items():
            outlet.put(name, np.array([t]), values)

    def _count(self, what: str, many: int = 1) -> None:
        self.counters[what] = self.counters.get(what, 0) + many


REGISTRY.add("serial", SourceKind(SerialSettings, Serial))
