"""Metrics of devices in a round (``up/metric``): a row for each device that took part, at a bounded rate."""

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.ingest.round_access import RoundAccess
from coordinator.storage import schema
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.errors import Reason, Refused
from protocol.messages import Metric, decode
from protocol.topics import Route
from runtime.mqtt.link import Message
from runtime.pacing import TokenBuckets

MAX_METRIC_BYTES: Final = 8192
METRICS_BURST: Final = 20.0
METRICS_A_SECOND: Final = 0.2
"""Metrics of one device that are written in a second, after its burst; further ones are dropped."""


class MetricReceiver:
    """Handles the payloads of ``up/metric``.

    Args:
        driver: knows the devices selected for the open round.
        journal: knows the devices that delivered in earlier rounds.
        ledger: writes the rows.
        now: monotonic seconds.
    """

    def __init__(
        self, driver: RoundAccess, journal: Journal, ledger: WriteBehindBuffer, now: Callable[[], float]
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._ledger = ledger
        self._now = now
        self._rate = TokenBuckets(METRICS_BURST, METRICS_A_SECOND)

    async def on_metric(self, route: Route, message: Message) -> bool:
        """Store a device's metrics, if it took part in the round: others would fill the disk.

        Returns:
            Whether the message is acknowledged when the row is on disk; else it has no effect.

        Raises:
            Refused: too large, malformed, or another device's.
        """
        device, payload = route.device or "", message.payload
        if len(payload) > MAX_METRIC_BYTES:
            words = f"metrics of {len(payload)} bytes, at most {MAX_METRIC_BYTES}"
            raise Refused(Reason.TOO_LARGE, words)
        metric = decode(payload, Metric)
        if metric.device != device:
            words = f"the topic is {device}'s, the message says {metric.device}"
            raise Refused(Reason.WRONG_DEVICE, words)
        if metric.round is None or not self._rate.take(device, self._now()):
            return False
        if not await self._took_part(device, metric.round):
            return False
        row = {"round": metric.round, "device": device, "metrics": metric.metrics}
        await self._ledger.put(schema.device_metrics, message.ack, **row)
        return True

    async def _took_part(self, device: str, round_: int) -> bool:
        state = self._driver.state
        if round_ == state.round and device in state.invited:
            return True
        return await asyncio.to_thread(self._journal.digest_of, round_, device) is not None
