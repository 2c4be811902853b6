"""What travels besides weights: how many windows each encoder was trained on. Torch-free."""

from typing import Annotated, Any

from pydantic import Field

from protocol.base import Count, Name, Wire
from protocol.frames.headers import read_extra


class TactflMessage(Wire):
    """``UpdateHeader.extra`` of a TACTFL update."""

    windows: Annotated[dict[Name, Annotated[Count, Field(ge=1)]], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies defaults
    """By modality, windows that its encoder was trained on in this round."""

    def extra(self) -> dict[str, Any]:
        """As JSON values, for the header."""
        return self.model_dump(mode="json")


def parse(extra: dict[str, Any]) -> TactflMessage:
    """Read ``UpdateHeader.extra``.

    Raises:
        Refused: MALFORMED; the detail names the field.
    """
    return read_extra(extra, TactflMessage)
