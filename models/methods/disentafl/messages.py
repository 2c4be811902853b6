"""Data sent besides weights: the device's profile, its domain and, with kd, its rows. Torch-free."""

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from models.contract import Profile
from protocol.base import Count, Share
from protocol.frames.headers import ExtraMessage
from protocol.tasks.task import ModalityName

_MOST_ROWS = 16 * 1024
_PART = "[A-Za-z_][A-Za-z0-9_-]{0,31}"
FeaturesBlob = Annotated[str, Field(pattern=rf"^features/{_PART}\.{_PART}$")]
"""``features/<modality>.<target>``; either may be ``_shared``."""


def _increasing(rows: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in pairwise(rows)):
        raise ValueError("rows must be strictly increasing")
    return rows


Rows = Annotated[tuple[Count, ...], Field(min_length=1, max_length=_MOST_ROWS), AfterValidator(_increasing)]
"""Which rows of a table of features there are, one for each row of the tensor."""
_Names = Annotated[tuple[ModalityName, ...], Field(min_length=1, max_length=16)]


class DisentMessage(ExtraMessage):
    """``UpdateHeader.extra`` of a DisentAFL update."""

    modalities: _Names
    """That the device read (I_i), in the task's order."""
    targets: _Names
    """That it learned to predict (O_i), in the task's order."""
    domain: Count
    """Of the experts that it trained (g_i,t)."""
    best: Count
    """That its gate prefers after this round (g_i,t+1)."""
    accuracy: Share | None = None
    """Seen with ``domain`` on its own validation windows; None where it has none."""
    rows: Annotated[dict[FeaturesBlob, Rows], Field(max_length=17 * 17)] = {}  # noqa: RUF012 - pydantic copies defaults
    """With kd: by blob, the rows of ``<blob>/values`` that are sent."""

    @property
    def profile(self) -> Profile:
        """The device's profile."""
        return Profile(self.modalities, self.targets)


class ServingMessage(ExtraMessage):
    """The part of :class:`DisentMessage` that determines the device's bundle."""

    best: Count
