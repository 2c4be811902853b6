"""What ``b/model`` and ``down/model`` say, and what of it was refused."""

from collections import deque
from typing import Final

from edge_agent.deployment.pointer_rules import select_pointer
from protocol.frames.frame import digest
from protocol.messages import ModelPointer

MAX_REFUSED: Final = 64
"""Pointers that are not tried again; who can publish has no end of them."""


class AnnouncedPointers:
    """Only the newest pointer of a topic is kept: an older one that still waits is forgotten."""

    def __init__(self) -> None:
        self._by: dict[bool, ModelPointer] = {}
        self._passed: list[ModelPointer] = []
        self.refused: deque[str] = deque(maxlen=MAX_REFUSED)

    def say(self, pointer: ModelPointer, *, own: bool) -> None:
        """``own``: on ``down/model``."""
        self._by[own] = pointer

    def clear(self, *, own: bool) -> None:
        """The topic says nothing any more."""
        self._by.pop(own, None)

    @property
    def best(self) -> ModelPointer | None:
        """Which is to be followed; None: there is none, or all were passed over."""
        left = {own: one for own, one in self._by.items() if not any(one is gone for gone in self._passed)}
        return select_pointer(left.get(False), left.get(True))

    def look_again(self) -> None:
        """Nothing is passed over any more."""
        self._passed = []

    def pass_over(self, pointer: ModelPointer) -> None:
        """Nobody who decides is known to have said that: the other topic is looked at."""
        self._passed.append(pointer)

    def refuse(self, pointer: ModelPointer) -> None:
        """It is not tried again."""
        self.refused.append(_mark(pointer))

    def is_refused(self, pointer: ModelPointer) -> bool:
        """Whether it was refused, and is one of the last ``MAX_REFUSED`` of those."""
        return _mark(pointer) in self.refused


def _mark(pointer: ModelPointer) -> str:
    """All that is judged: a good decision or bundle may be announced with something beside it that is not."""
    return digest(pointer.model_dump_json(exclude={"metrics"}).encode())
