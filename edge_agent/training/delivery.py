"""Gives trained updates to the outbox."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog

from edge_agent.messaging.device_trace import NoSpans, RoundSpans
from edge_agent.messaging.outbox import Outbox, PackedUpdate
from edge_agent.messaging.round_metrics import RoundMetrics
from models.contract import FloatArray
from protocol.frames.frame import digest
from protocol.messages import Offer
from runtime.waits import StatusText

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TrainedUpdate:
    """What is stored or told with an update.

    Attributes:
        carry: quantization errors, by tensor; None if the task has none.
        saving: writes the method's private tensors, in the update's transaction.
        metrics: of the round; none are told of a secure one.
        spans: of its trace.
    """

    carry: Mapping[str, FloatArray] | None
    saving: Callable[[], AbstractContextManager[None]]
    metrics: dict[str, float]
    spans: RoundSpans | NoSpans


class Delivery:
    """Counts what it has given.

    Args:
        outbox: stores and sends updates.
        metrics: given the numbers of each round that has an update.
        learning: the learner's status.
    """

    def __init__(self, outbox: Outbox, metrics: RoundMetrics, learning: StatusText) -> None:
        self._outbox, self._metrics, self._learning = outbox, metrics, learning
        self.count = 0

    async def submit(self, trained: TrainedUpdate, frame: bytes, offer: Offer) -> None:
        """Store the frame of an update, which answers an offer.

        Raises:
            Transient: the disk is full.
            asyncio.CancelledError: the caller was cancelled; the update is stored all the same.
        """
        update = PackedUpdate(offer, digest(frame), frame, trained.carry)
        try:
            await self._outbox.submit(update, trained.saving)
        except asyncio.CancelledError:
            self._tell(offer, trained)  # it is in the spool, and will be sent
            raise
        trained.spans.mark("spool")
        trained.spans.end()
        self.count += 1
        self._learning.say(f"the update for round {offer.round} waits for its receipt")
        _log.info("update_spooled", round=offer.round, bytes=len(frame))
        self._tell(offer, trained)

    def _tell(self, offer: Offer, trained: TrainedUpdate) -> None:
        if trained.metrics:
            self._metrics.add(offer.round, trained.metrics)
