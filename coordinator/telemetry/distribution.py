"""Distribution of each metric over the fleet, for Prometheus: never a series for one device.

A report moves its device from its former buckets to the new ones, so neither a message nor a scrape costs
more in a larger fleet.
"""

import math
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from runtime.metrics import MetricFamily, gauge

_BYTES: Final = (1e5, 1e6, 1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 1e11)
_SHARE: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 4.0)
_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
_DRIFT: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_RATE: Final = (0.0, 0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
OF_DEVICE: Final[Mapping[str, tuple[str, Sequence[float]]]] = {
    "uptime_s": ("Seconds since the agent's start", (60.0, 600.0, 3600.0, 21600.0, 86400.0, 604800.0)),
    "spool_updates": ("Updates without a receipt", (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)),
    "spool_bytes": ("Bytes in the spool", _BYTES),
    "disk_free_bytes": ("Free bytes on the disk of the agent's state", _BYTES),
    "memory_bytes": ("Resident memory of the agent", _BYTES),
    "memory_available_bytes": ("Memory of the machine that is available", _BYTES),
    "cpu_share": ("CPU time of the agent, in cores", _SHARE),
    "load_share": ("Load average of the machine by core", _SHARE),
    "temperature_c": (
        "Hottest thermal zone, degrees Celsius",
        (0.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0),
    ),
    "reconnects": ("Lost connections since the agent's start", (0.0, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0)),
    "predictions_per_s": ("Predictions in a second", _RATE),
    "latency_p50_s": ("Median latency from the end of a window to its prediction", _SECONDS),
    "latency_p95_s": ("95th percentile of that latency", _SECONDS),
    "drift": ("Distance of the model's answers from its first days, over its limit", _DRIFT),
}
"""By field of ``protocol.telemetry.Telemetry``: its help text, and the upper ends of its buckets."""
OF_MODALITY: Final[Mapping[str, tuple[str, Sequence[float]]]] = {
    "windows_per_s": ("Windows in a second, by modality", _RATE),
    "quality": (
        "Mean quality of the windows, by modality",
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ),
}
PREFIX: Final = "lichen_telemetry_"


class FleetDistribution:
    """The newest report of each device, as counts in buckets. Call it in one thread; :meth:`metrics` in any.

    Args:
        modalities: of the task.
        fresh_s: an older report no longer counts.
        most: devices; beyond it the one that is silent for longest no longer counts.
    """

    def __init__(self, modalities: Iterable[str], fresh_s: float, most: int) -> None:
        self._fresh_s = fresh_s
        self._most = most
        self._bounds: dict[str, Sequence[float]] = {name: bounds for name, (_, bounds) in OF_DEVICE.items()}
        for modality in modalities:
            self._bounds |= {f"{name}/{modality}": bounds for name, (_, bounds) in OF_MODALITY.items()}
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in self._bounds.items()}
        self._sums = dict.fromkeys(self._bounds, 0.0)
        self._devices: OrderedDict[str, tuple[float, array[float]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._devices)

    def put(self, device: str, values: Mapping[str, float], now: float) -> None:
        """Replace the report of a device.

        Args:
            device: its name.
            values: by name, as ``history.flat`` gives them; unknown names are ignored.
            now: monotonic seconds.
        """
        self.drop(device)
        report = array("d", (values.get(name, math.nan) for name in self._bounds))
        self._devices[device] = now, report
        self._count(report, 1)
        while len(self._devices) > self._most:
            self.drop(next(iter(self._devices)))

    def drop(self, device: str) -> None:
        """Forget a device."""
        if (known := self._devices.pop(device, None)) is not None:
            self._count(known[1], -1)

    def expire(self, now: float) -> None:
        """Forget the devices whose report is too old."""
        while self._devices:
            device, (at, _) = next(iter(self._devices.items()))
            if now - at <= self._fresh_s:
                return
            self.drop(device)

    def _count(self, report: Sequence[float], sign: int) -> None:
        for (name, bounds), value in zip(self._bounds.items(), report, strict=True):
            if not math.isnan(value):
                self._counts[name][bisect_left(bounds, value)] += sign
                self._sums[name] += sign * value

    def metrics(self) -> Iterable[MetricFamily]:
        """For each metric ``_bucket`` (cumulative, by ``le``), ``_sum`` and ``_count``."""
        yield gauge(f"{PREFIX}devices", "Devices with a recent report about themselves", len(self._devices))
        for name, (words, _) in OF_DEVICE.items():
            yield from self._families(name, words, {(): name})
        names = list(self._bounds)
        for name, (words, _) in OF_MODALITY.items():
            of: dict[tuple[str, ...], str] = {
                (key.partition("/")[2],): key for key in names if key.startswith(f"{name}/")
            }
            yield from self._families(name, words, of)

    def _families(self, name: str, words: str, keys: Mapping[tuple[str, ...], str]) -> Iterable[MetricFamily]:
        buckets, sums, totals = [], [], []
        for labels, key in keys.items():
            counts, so_far = list(self._counts[key]), 0
            for bound, count in zip((*self._bounds[key], math.inf), counts, strict=True):
                so_far += count
                buckets.append(((*labels, "+Inf" if math.isinf(bound) else f"{bound:g}"), float(so_far)))
            totals.append((labels, float(so_far)))
            sums.append((labels, self._sums[key] if so_far else 0.0))
        by = ("modality",) if () not in keys else ()
        yield MetricFamily(
            f"{PREFIX}{name}_bucket", f"{words}: devices up to le", "gauge", buckets, (*by, "le")
        )
        yield MetricFamily(f"{PREFIX}{name}_sum", f"{words}: sum", "gauge", sums, by)
        yield MetricFamily(f"{PREFIX}{name}_count", f"{words}: devices that report it", "gauge", totals, by)
