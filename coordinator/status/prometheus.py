"""Prometheus metrics, if ``metrics.prometheus_port`` is set: read from the parts at each scrape."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coordinator.config.coordinator import MetricsSettings
from protocol.errors import Misconfigured
from runtime.concurrency.loop_stalls import LoopStalls
from runtime.metrics import HasMetrics, MetricFamily, counter, gauge
from runtime.storage.disk import DISK


class DiskUse:
    """Writes of this process since its start, and what is left of its disk.

    Args:
        folder: on that disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def metrics(self) -> Iterable[MetricFamily]:
        """Counters of commits, syncs and bytes; free bytes, if the disk answers."""
        for what, count in DISK.get().wear().items():
            yield counter(f"lichen_disk_{what}", f"Disk {what} since the start", count)
        with suppress(OSError):
            room = os.statvfs(self._folder)
            words = "Free bytes on the disk of state_dir"
            yield gauge("lichen_disk_free_bytes", words, room.f_bavail * room.f_frsize)


@contextmanager
def serve_metrics(settings: MetricsSettings, parts: Sequence[HasMetrics]) -> Iterator[int]:
    """Serve ``/metrics`` from a thread of its own, if a port is set; also the stalls of the running loop.

    Args:
        settings: where.
        parts: the sources of metrics.

    Yields:
        The port; 0 if none is set.

    Raises:
        Misconfigured: prometheus-client is not installed, or the port is in use.
    """
    port = settings.prometheus_port
    if not port:
        yield 0
        return
    try:
        import prometheus_client  # noqa: PLC0415 - optional: only if a port is set
    except ImportError:
        raise Misconfigured(
            "metrics.prometheus_port is set, but prometheus-client is missing: "
            "pip install 'lichen[coordinator]'"
        ) from None
    registry = prometheus_client.CollectorRegistry()
    stalls = LoopStalls()
    registry.register(_Collector([*parts, stalls]))
    try:
        server, thread = prometheus_client.start_http_server(port, settings.address, registry)
    except OSError as error:
        raise Misconfigured(f"metrics.prometheus_port: {port}: {error}") from None
    try:
        with stalls.measured():
            yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


class _Collector:
    """The collector that ``prometheus_client`` calls at each scrape."""

    def __init__(self, parts: Sequence[HasMetrics]) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import (  # noqa: PLC0415 - see serve_metrics
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        found: dict[str, Any] = {}
        for part in self._parts:
            for metric in part.metrics():
                family = families[metric.kind](metric.name, metric.words, labels=metric.labels)
                for labels, value in metric.values:
                    family.add_metric(labels, value)
                # Each metric is served once: those of further tasks have a label more than the main task's.
                found.setdefault(metric.name, family)
                if found[metric.name] is not family:
                    found[metric.name].samples.extend(family.samples)
        yield from found.values()
