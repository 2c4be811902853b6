"""Data sent besides weights: how many windows each encoder was trained on. Torch-free."""

from typing import Annotated

from pydantic import Field

from protocol.base import Count, Name
from protocol.frames.headers import ExtraMessage


class TactflMessage(ExtraMessage):
    """``UpdateHeader.extra`` of a TACTFL update."""

    windows: Annotated[dict[Name, Annotated[Count, Field(ge=1)]], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies defaults
    """By modality, windows that its encoder was trained on in this round."""
