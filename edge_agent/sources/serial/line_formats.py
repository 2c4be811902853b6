"""Converts a line of a serial sensor to rows: csv columns, JSON with paths, NMEA sentences. Pure."""

from collections.abc import Mapping
from functools import reduce
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from edge_agent.sources.payloads import BadPayload, JsonPath, at, linear, loads, number, parse_path, shown
from runtime.settings.load import Section

LineFormat = Literal["csv", "json", "nmea"]
Column = Annotated[int, Field(ge=0, le=255)]


class SerialModality(Section):
    """``[source.modalities.<name>]`` of a serial source: the positions of its channels in a line."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=64)] | None = None
    """csv and nmea: the first column is 0; in an NMEA sentence that is its name."""
    paths: Annotated[tuple[JsonPath, ...], Field(min_length=1, max_length=64)] | None = None
    """json: as ``wind.speed``."""
    prefix: str = ""
    """Only lines with this prefix; others belong to other modalities, or are ignored."""
    unit: str = ""
    """After ``factor`` and ``offset``; compared with the task's."""
    factor: float = 1.0
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.columns is None) == (self.paths is None):
            raise ValueError("give either columns (csv, nmea) or paths (json)")
        return self

    @property
    def width(self) -> int:
        """Channels."""
        return len(self.columns or self.paths or ())


class LineReader:
    """Reads lines of one format.

    Args:
        modalities: the positions of each modality's channels.
        kind: the format.
        separator: of csv; empty: any white space.
        words: cells that are not numbers -> numbers.
    """

    def __init__(
        self,
        modalities: Mapping[str, SerialModality],
        kind: LineFormat,
        separator: str,
        words: Mapping[str, float],
    ) -> None:
        self._modalities = modalities
        self._split = {"csv": self._csv, "json": _json, "nmea": _nmea}[kind]
        self._separator = separator or None
        self._words = words
        self._paths = {name: [parse_path(p) for p in m.paths or ()] for name, m in modalities.items()}

    def rows(self, line: bytes) -> dict[str, NDArray[np.float32]]:
        """``values`` (1, C) by modality; empty if the line belongs to none.

        Raises:
            BadPayload: it belongs to a modality and does not match its configuration.
        """
        text = line.decode("ascii", "replace").strip()
        mine = {name: m for name, m in self._modalities.items() if text.startswith(m.prefix)}
        if not mine:
            return {}
        cells = self._split(text)
        return {name: self._row(name, modality, cells) for name, modality in mine.items()}

    def _row(self, name: str, modality: SerialModality, cells: Any) -> NDArray[np.float32]:
        cells_read = [at(cells, path) for path in self._paths[name]]
        for column in modality.columns or ():
            if column >= len(cells):
                raise BadPayload(f"no column {column} in {len(cells)}")
            cells_read.append(cells[column])
        values = np.array([[number(value, self._words) for value in cells_read]])
        return linear(values, modality.factor, modality.offset)

    def _csv(self, text: str) -> list[str]:
        return [cell.strip() for cell in text.split(self._separator)]


def _json(text: str) -> Any:
    value = loads(text.encode())
    if not isinstance(value, dict | list):
        raise BadPayload(f"not a JSON object: {shown(text)}")
    return value


def _nmea(text: str) -> list[str]:
    """Columns of ``$WIMWV,214.8,R,0.1,K,A*28``; the checksum is the XOR of the bytes between $ and *."""
    sentence, star, checksum = text.partition("*")
    if star:
        computed = reduce(lambda a, b: a ^ b, sentence[1:].encode("ascii", "replace"), 0)
        if checksum.strip().upper() != f"{computed:02X}":
            raise BadPayload(f"checksum {checksum.strip()[:4]!r}, not {computed:02X}")
    return sentence.split(",")
