"""Signals and queues between parts of a coordinator that do not know each other."""

from dataclasses import dataclass, field

from coordinator.messaging.receipts import AnswerQueue
from runtime.concurrency.signals import Signal


@dataclass(frozen=True)
class Wires:
    """Signals and queues that several parts share; a test that brings its own sees their traffic.

    Attributes:
        changes: the round has changed.
        offers: the offer of the round may have to change.
        answers: messages to be sent to devices.
    """

    changes: Signal = field(default_factory=Signal)
    offers: Signal = field(default_factory=Signal)
    answers: AnswerQueue = field(default_factory=AnswerQueue)
