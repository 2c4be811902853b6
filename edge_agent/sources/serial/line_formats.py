"""One line of a serial sensor -> rows of modalities: csv columns, JSON with paths, NMEA sentences. Pure."""

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
    """``[source.modalities.<name>]`` of a serial source: where its channels stand in a line."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=64)] | None = None
    """csv and nmea: column 0 is the first; of an NMEA sentence that is its name."""
    paths: Annotated[tuple[JsonPath, ...], Field(min_length=1, max_length=64)] | None = None
    """json: as ``wind.speed``."""
    prefix: str = ""
    """Only lines that begin so; others are for other modalities, or for nobody."""
    unit: str = ""
    """After ``factor`` and ``offset``; compared with the task's."""
    factor: float = 1.0
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.columns is None) == (self.paths is None):
            raise ValueError("give columns (csv, nmea) or paths (json), one of them")
        return self

    @property
    def width(self) -> int:
        """Channels."""
        return len(self.columns or self.paths or ())


class LineReader:
    """Reads lines of one format.

    Args:
        modalities: what is read from which lines.
        kind: the format.
        separator: of csv; empty: any white space.
        words: cells that are no numbers -> numbers.
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
        """``values`` (1, C) by modality; empty where the line is nobody's.

        Raises:
            BadPayload: it is somebody's, and not what it should be.
        """
        text = line.decode("ascii", "replace").strip()
        mine = {name: m for name, m in self._modalities.items() if text.startswith(m.prefix)}
        if not mine:
            return {}
        cells = self._split(text)
        return {name: self._row(name, one, cells) for name, one in mine.items()}

    def _row(self, name: str, modality: SerialModality, cells: Any) -> NDArray[np.float32]:
        found = [at(cells, path) for path in self._paths[name]]
        for column in modality.columns or ():
            if column >= len(cells):
                raise BadPayload(f"no column {column} in {len(cells)}")
            found.append(cells[column])
        values = np.array([[number(value, self._words) for value in found]])
        return linear(values, modality.factor, modality.offset)

    def _csv(self, text: str) -> list[str]:
        return [cell.strip() for cell in text.split(self._separator)]


def _json(text: str) -> Any:
    found = loads(text.encode())
    if not isinstance(found, dict | list):
        raise BadPayload(f"no JSON object: {shown(text)}")
    return found


def _nmea(text: str) -> list[str]:
    """Columns of ``$WIMWV,214.8,R,0.1,K,A*28``; the checksum is the XOR of what stands between $ and *."""
    sentence, star, told = text.partition("*")
    if star:
        found = reduce(lambda a, b: a ^ b, sentence[1:].encode("ascii", "replace"), 0)
        if told.strip().upper() != f"{found:02X}":
            raise BadPayload(f"checksum {told.strip()[:4]!r}, not {found:02X}")
    return sentence.split(",")
