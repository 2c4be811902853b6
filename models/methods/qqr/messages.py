"""Data sent besides weights: the classes of an update's prototypes, and their counts. Torch-free."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from protocol.base import Count, Name, Wire
from protocol.frames.headers import ExtraMessage

_PerRow = Annotated[tuple[Count, ...], Field(min_length=1, max_length=1024)]


class PrototypeRows(Wire):
    """The rows of ``prototypes/<modality>/values``: only classes that occurred are sent."""

    classes: _PerRow
    """Class indices, strictly increasing; one for each row of the tensor."""
    counts: _PerRow
    """Windows in the row's mean: present, of good quality, of this class (14)."""

    @model_validator(mode="after")
    def _rows_agree(self) -> Self:
        if len(self.classes) != len(self.counts):
            raise ValueError(f"{len(self.classes)} classes but {len(self.counts)} counts")
        if any(a >= b for a, b in zip(self.classes, self.classes[1:], strict=False)):
            raise ValueError("classes must be strictly increasing")
        if 0 in self.counts:
            raise ValueError("a prototype made from no window must not be sent")
        return self


class QqrMessage(ExtraMessage):
    """``UpdateHeader.extra`` of a QQR update."""

    prototypes: Annotated[dict[Name, PrototypeRows], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies defaults
