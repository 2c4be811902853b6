"""Sends the device's own metrics (``up/metric``) at a slow, bounded pace; a lost report is not repeated."""

import asyncio
import copy
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.drift.service import DriftService
from edge_agent.inference.latency import Latency
from edge_agent.inference.service import Inference
from edge_agent.ports import TaskLink
from edge_agent.telemetry.host import HostReading, cpu_seconds, read_host
from edge_agent.windows.collector import Collector, ModalityTotal
from protocol.errors import Refused, Transient
from protocol.messages import Metric, encode
from protocol.telemetry import ModalityTelemetry, Telemetry
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.storage.spool import Spool

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Totals:
    """Totals since the start, at one moment (monotonic seconds)."""

    at: float
    cpu_s: float = 0.0
    predictions: int = 0
    latency: list[int] = field(default_factory=lambda: list(Latency().counts))
    modalities: dict[str, ModalityTotal] = field(default_factory=dict)


class TelemetryReporter:
    """One service.

    Args:
        settings: of the agent.
        link: to the coordinator.
        spool: counts the updates that wait.
        collector: counts windows.
        inference: counts predictions and their latencies.
        drift: compares the committed model's answers with those of its first days.
        clock: paces it.
        rng: spreads the reports of a fleet that starts at once; None creates one.
        read: reads the machine; called in a thread.
    """

    def __init__(
        self,
        settings: AgentSettings,
        link: TaskLink,
        *,
        spool: Spool,
        collector: Collector,
        inference: Inference,
        drift: DriftService,
        clock: Clock,
        rng: random.Random | None = None,
        read: Callable[[Path], HostReading] = read_host,
    ) -> None:
        self._settings = settings
        self._link = link
        self._spool = spool
        self._collector = collector
        self._inference = inference
        self._drift = drift
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - a delay, no secret
        self._read = read
        self._started = clock.now()
        self._last = _Totals(clock.now(), cpu_seconds())

    async def run(self) -> None:
        """Report for ever; without a connection nothing is measured."""
        topic = device_topic(self._settings.fleet, self._settings.device, Kind.METRIC)
        every_s = self._settings.telemetry.every_s
        await self._clock.sleep(self._rng.uniform(0.0, every_s))
        while True:
            if self._link.connected:
                try:
                    report = await self.measure()
                    message = Metric(device=self._settings.device, metrics={}, telemetry=report)
                    await self._link.publish(topic, encode(message))
                except (Transient, Refused) as error:
                    _log.debug("telemetry_not_sent", why=str(error))
            await self._clock.sleep(every_s)

    async def measure(self) -> Telemetry:
        """The report of the time since the last call.

        Raises:
            Transient: the spool cannot be read now.
        """
        host = await asyncio.to_thread(self._read, self._settings.state_dir)
        waiting, used = await asyncio.to_thread(lambda: (self._spool.pending(), self._spool.bytes_used))
        before, now = self._last, self._totals()
        self._last = now
        passed_s = max(now.at - before.at, 1e-3)
        latency = self._inference.latency.since(before.latency)
        found = asdict(host) | {
            "cpu_share": (now.cpu_s - before.cpu_s) / passed_s,
            "predictions_per_s": (now.predictions - before.predictions) / passed_s,
            "latency_p50_s": latency.quantile_s(0.5),
            "latency_p95_s": latency.quantile_s(0.95),
            "drift": self._drift.ratio,
        }
        return Telemetry(
            uptime_s=round(now.at - self._started, 1),
            spool_updates=len(waiting),
            spool_bytes=used,
            reconnects=self._link.counters.reconnects,
            modalities={
                name: _modality(total, before.modalities.get(name, ModalityTotal()), passed_s)
                for name, total in now.modalities.items()
                if name in self._reads()
            },
            **{name: _short(value) for name, value in found.items()},
        )

    def _reads(self) -> tuple[str, ...]:
        work = self._collector.workspace
        return () if work is None else work.modalities

    def _totals(self) -> _Totals:
        return _Totals(
            self._clock.now(),
            cpu_seconds(),
            self._inference.predictions,
            list(self._inference.latency.counts),
            copy.deepcopy(self._collector.totals),
        )


def _modality(now: ModalityTotal, before: ModalityTotal, passed_s: float) -> ModalityTelemetry:
    """Of the windows since then; a new task starts counting at 0."""
    if now.windows < before.windows:
        before = ModalityTotal()
    windows = now.windows - before.windows
    quality = None if not windows else min(1.0, max(0.0, (now.quality - before.quality) / windows))
    return ModalityTelemetry(windows_per_s=_short(windows / passed_s) or 0.0, quality=_short(quality))


def _short(value: Any) -> Any:
    """Three significant digits of a fraction: more are bytes without information."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
