"""By which parts of a coordinator wake each other, without knowing each other."""

from dataclasses import dataclass, field

from coordinator.messaging.receipts import AnswerQueue
from runtime.concurrency.signals import KeyedQueue, Signal


@dataclass(frozen=True)
class Wires:
    """Signals and queues that several parts share; who brings their own sees what passes.

    Attributes:
        changes: there is something new to say of the round.
        offers: devices that the open round is to be offered to now.
        answers: what is to be sent to devices.
    """

    changes: Signal = field(default_factory=Signal)
    offers: KeyedQueue[str] = field(default_factory=KeyedQueue)
    answers: AnswerQueue = field(default_factory=AnswerQueue)
