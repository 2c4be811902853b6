"""Metrics of devices (``up/metric``), at a bounded rate: of rounds, telemetry, evaluations of versions."""

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.evaluations.recorder import EvaluationRecorder
from coordinator.ingest.round_access import Registered, RoundAccess
from coordinator.storage import schema
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import WriteBehindBuffer
from coordinator.telemetry.recorder import TelemetryRecorder
from protocol.errors import Reason, Refused
from protocol.messages import Metric, decode
from protocol.topics import Route
from runtime.mqtt.link import Message
from runtime.pacing import TokenBuckets

MAX_METRIC_BYTES: Final = 16384
METRICS_BURST: Final = 20.0
METRICS_A_SECOND: Final = 0.2
"""Metrics of one device that are written in a second, after its burst; further ones are dropped."""


class MetricReceiver:
    """Handles the payloads of ``up/metric``.

    Args:
        driver: knows the devices selected for the open round.
        journal: knows the devices that delivered in earlier rounds.
        ledger: writes the rows.
        roster: the registered devices; telemetry and evaluations of others are ignored.
        telemetry: stores what devices report about themselves.
        evaluations: stores what devices report about versions.
        now: monotonic seconds.
    """

    def __init__(
        self,
        driver: RoundAccess,
        journal: Journal,
        ledger: WriteBehindBuffer,
        *,
        roster: Registered,
        telemetry: TelemetryRecorder,
        evaluations: EvaluationRecorder,
        now: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._ledger = ledger
        self._roster = roster
        self._telemetry = telemetry
        self._evaluations = evaluations
        self._now = now
        self._rate = TokenBuckets(METRICS_BURST, METRICS_A_SECOND)

    async def on_metric(self, route: Route, message: Message) -> bool:
        """Store a device's metrics of a round, if it took part in it; else what a registered device reports.

        Others would fill the disk.

        Returns:
            Whether the message is acknowledged when the row is on disk; else it has no effect.

        Raises:
            Refused: too large, malformed, another device's, or an evaluation that is not of this task.
        """
        device, payload = route.device or "", message.payload
        if len(payload) > MAX_METRIC_BYTES:
            words = f"metrics of {len(payload)} bytes, at most {MAX_METRIC_BYTES}"
            raise Refused(Reason.TOO_LARGE, words)
        metric = decode(payload, Metric)
        if metric.device != device:
            words = f"the topic is {device}'s, the message says {metric.device}"
            raise Refused(Reason.WRONG_DEVICE, words)
        if not self._rate.take(device, self._now()):
            return False
        if metric.telemetry is not None and device in self._roster:
            await self._telemetry.record(device, metric.telemetry, message.ack)
            return True
        if metric.evaluation is not None and device in self._roster:
            await self._evaluations.record(device, metric.evaluation, message.ack)
            return True
        if metric.round is None:
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
