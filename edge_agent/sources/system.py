"""The ``system`` source: readings of the machine itself through psutil and hwmon. Works on any Linux.

A modality is a list of readings, its channels. The default is the modality ``cpu``: ``cpu.percent``,
``load.1``.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated

import numpy as np
import psutil
from pydantic import Field

from edge_agent.sources.base import REGISTRY, SourceKind
from models.data.streams.batches import Batch, SampleBatch
from protocol.errors import Misconfigured
from runtime.clock import Clock
from runtime.settings.load import Section

Reading = Callable[[], float]
NAN = float("nan")


class SystemSettings(Section):
    """Keys of ``[[source]] kind = "system"``."""

    interval_s: Annotated[float, Field(ge=0.02, le=3600)] = 1.0
    modalities: Annotated[
        dict[str, tuple[str, ...]],
        Field(min_length=1, default_factory=lambda: {"cpu": ("cpu.percent", "load.1")}),
    ]
    """Task modality -> names of readings, one for each channel."""


def _rate(counter: Callable[[], float]) -> Reading:
    """The growth of a counter per second; NaN at the first call."""
    last: list[tuple[float, float]] = []

    def read() -> float:
        now, value = time.monotonic(), counter()
        before = last.pop() if last else (now, value)
        last.append((now, value))
        return (value - before[1]) / (now - before[0]) if now > before[0] else NAN

    return read


def _temperature(chip: str, index: int) -> Reading:
    def read() -> float:
        entries = psutil.sensors_temperatures().get(chip, [])
        return float(entries[index].current) if index < len(entries) else NAN

    return read


def readings() -> dict[str, Reading]:
    """All readings of this machine by name. A reading that fails later gives NaN, which becomes a gap."""
    available: dict[str, Reading] = {
        "cpu.percent": lambda: psutil.cpu_percent(None),
        "load.1": lambda: psutil.getloadavg()[0],
        "load.5": lambda: psutil.getloadavg()[1],
        "memory.percent": lambda: psutil.virtual_memory().percent,
        "memory.available_bytes": lambda: float(psutil.virtual_memory().available),
        "disk.percent": lambda: psutil.disk_usage("/").percent,
        "net.sent_bytes_s": _rate(lambda: float(psutil.net_io_counters().bytes_sent)),
        "net.received_bytes_s": _rate(lambda: float(psutil.net_io_counters().bytes_recv)),
    }
    if psutil.disk_io_counters() is not None:  # None if the machine has no disks, as in a container
        available["disk.read_bytes_s"] = _rate(
            lambda: float(getattr(psutil.disk_io_counters(), "read_bytes", NAN))
        )
        available["disk.write_bytes_s"] = _rate(
            lambda: float(getattr(psutil.disk_io_counters(), "write_bytes", NAN))
        )
    for chip, entries in psutil.sensors_temperatures().items():
        for index, entry in enumerate(entries):
            available[f"temperature.{chip}.{entry.label or index}"] = _temperature(chip, index)
    return available


class SystemSource:
    """Reads at fixed intervals; the time axis is Unix time by the wall clock."""

    def __init__(self, settings: SystemSettings, known: Sequence[str] | None, clock: Clock) -> None:
        available = readings()
        for modality, names in settings.modalities.items():
            if known is not None and modality not in known:
                raise Misconfigured(
                    f"modalities.{modality}: the task has no such modality; it has {', '.join(known)}"
                )
            for name in names:
                if name not in available:
                    raise Misconfigured(
                        f"modalities.{modality}: this machine has no reading {name!r}; "
                        f"it has {', '.join(available)}"
                    )
        self.name = "system"
        self.channels = {modality: len(names) for modality, names in settings.modalities.items()}
        self._settings = settings
        self._clock = clock
        self._readings = available

    def _read(self, name: str) -> float:
        try:
            return float(self._readings[name]())
        except (OSError, psutil.Error):  # a chip was removed: a gap in this channel, the others continue
            return NAN

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield one row for each modality and interval; see :class:`edge_agent.sources.base.Source`."""
        due = self._clock.now()
        while True:
            t = np.array([self._clock.wall()])
            for modality, names in self._settings.modalities.items():
                row = np.array([[self._read(name) for name in names]], np.float32)
                yield SampleBatch(modality, t, row)
            due = max(due + self._settings.interval_s, self._clock.now())
            await self._clock.sleep(due - self._clock.now())


REGISTRY.add("system", SourceKind(SystemSettings, SystemSource))
