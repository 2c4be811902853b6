"""Polls the attributes of an IIO device that has no buffer, or whose buffer this user may not use.

Reading k is due at ``start + k * period``: a late reading does not delay the next ones. A missed reading is a
gap and is counted; the delay of readings is counted too.
"""

import errno
from collections.abc import MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.iio.channels import Modalities, SampleRows, names
from edge_agent.sources.iio.sysfs import IioDevice
from edge_agent.sources.reader_thread import ThreadOutlet
from protocol.errors import Transient
from runtime.clock import Clock

_GONE: Final = (errno.ENODEV, errno.ENXIO, errno.ENOENT)
MAX_FAILURES: Final = 20
"""The device has failed after this many consecutive readings that failed on every channel."""


class PollTimer:
    """When the next reading is due, in seconds of a monotonic clock; counts missed readings."""

    def __init__(self, period_s: float, start: float, counters: MutableMapping[str, float]) -> None:
        self._period = period_s
        self._start = start
        self._k = 0
        self._counters = counters

    @property
    def due(self) -> float:
        """When the present reading is due."""
        return self._start + self._k * self._period

    def done(self, read: float, now: float) -> None:
        """Record a reading at ``read`` (s), now being ``now``; the next one is late by less than a period."""
        late = 1000 * max(0.0, read - self.due)
        self._counters["late_ms_max"] = max(self._counters.get("late_ms_max", 0.0), late)
        self._k += 1
        missed = int(max(0.0, (now - self.due) / self._period))
        if missed:
            self._counters["missed_beats"] = self._counters.get("missed_beats", 0) + missed
            self._k += missed


class Poller:
    """Reads all channels at each due time; blocking, so it needs a thread of its own."""

    def __init__(
        self,
        device: IioDevice,
        modalities: Modalities,
        rate_hz: float,
        clock: Clock,
        counters: MutableMapping[str, float],
    ) -> None:
        have = device.channels()
        self._device = device
        self._files = {}
        for name in names(modalities):
            if have.get(name) not in {"raw", "input"}:
                raise Transient(f"{device.name}: {name!r} cannot be read one at a time; set mode = 'buffer'")
            self._files[name] = device.path / f"in_{name}_{have[name]}"
        self._rows = SampleRows(device, modalities, buffered=False)
        self._period = 1.0 / rate_hz
        self._clock = clock
        self._counters = counters
        self._failures = 0

    def run(self, outlet: ThreadOutlet) -> None:
        """Read until the outlet stops.

        Raises:
            OSError: the device is gone, or fails repeatedly.
        """
        beat = PollTimer(self._period, self._clock.now(), self._counters)
        while not outlet.wait(beat.due - self._clock.now()):
            read, before = self._clock.now(), self._clock.wall()
            numbers = {name: self._numbers(name) for name in self._files}
            duration = self._clock.now() - read
            t = np.array([before + duration / 2])
            for modality, values in self._rows.of(numbers).items():
                outlet.put(modality, t, values)
            beat.done(read, self._clock.now())

    def _numbers(self, channel: str) -> NDArray[Any]:
        """(1, repeat); NaN if the bus failed just now."""
        try:
            text = self._files[channel].read_bytes()
            numbers = np.array([[float(word) for word in text.split()]])
        except ValueError:
            numbers = np.full((1, 1), np.nan)
        except OSError as error:
            self._counters["read_errors"] = self._counters.get("read_errors", 0) + 1
            self._failures += 1
            if error.errno in _GONE or self._failures > MAX_FAILURES * len(self._files):
                raise
            if error.errno == errno.EBUSY:
                words = "in use: another program has enabled its buffer"
                raise Transient(f"{self._device.name} ({self._device.id}) is {words}") from None
            return np.full((1, 1), np.nan)
        self._failures = 0
        return numbers
