"""The pointers announced on ``b/model`` and ``down/model``, and those of them that were refused."""

from collections import deque
from typing import Final

from edge_agent.deployment.pointer_rules import select_pointer
from protocol.frames.frame import digest
from protocol.messages import ModelPointer

MAX_REFUSED: Final = 64
"""Refused pointers to remember, so that they are not tried again; a publisher can send any number."""


class AnnouncedPointers:
    """Keeps only the newest pointer of each topic: it replaces an older one that still waits."""

    def __init__(self) -> None:
        self._by: dict[bool, ModelPointer] = {}
        self._skipped: list[ModelPointer] = []
        self.refused: deque[str] = deque(maxlen=MAX_REFUSED)

    def store(self, pointer: ModelPointer, *, own: bool) -> None:
        """Store a pointer. ``own``: it came on ``down/model``."""
        self._by[own] = pointer

    def clear(self, *, own: bool) -> None:
        """Forget the topic's pointer: the topic was cleared."""
        self._by.pop(own, None)

    @property
    def best(self) -> ModelPointer | None:
        """The pointer to follow; None if there is none, or all were passed over."""
        left = {own: one for own, one in self._by.items() if not any(one is gone for gone in self._skipped)}
        return select_pointer(left.get(False), left.get(True))

    def reset_skipped(self) -> None:
        """Consider again all pointers that were passed over."""
        self._skipped = []

    def skip(self, pointer: ModelPointer) -> None:
        """Skip a pointer without a trusted signature; the other topic's is used."""
        self._skipped.append(pointer)

    def refuse(self, pointer: ModelPointer) -> None:
        """Remember a pointer that must not be tried again."""
        self.refused.append(_mark(pointer))

    def is_refused(self, pointer: ModelPointer) -> bool:
        """Whether it is one of the last ``MAX_REFUSED`` refused pointers."""
        return _mark(pointer) in self.refused


def _mark(pointer: ModelPointer) -> str:
    """Digest of all checked fields: a valid bundle may be announced with other fields that are invalid."""
    return digest(pointer.model_dump_json(exclude={"metrics"}).encode())
