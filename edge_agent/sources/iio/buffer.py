"""Scans of an IIO device from ``/dev/iio:deviceN``: the driver samples, so no sample is lost between reads.

Set up through sysfs. Only attributes with another value are written: a device that a boot script has prepared
needs no write permission. Attributes that were enabled here are disabled at the end.
"""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.iio.channels import Modalities, SampleRows, names
from edge_agent.sources.iio.scan_format import ScanLayout
from edge_agent.sources.iio.sysfs import IioDevice
from edge_agent.sources.reader_thread import ThreadOutlet
from edge_agent.sources.timestamps import BlockTimestamps, ClockMapping
from protocol.errors import Transient
from runtime.clock import Clock

WAKE_S: Final = 0.1
"""Longest time between two reads, if the driver can wait for more than one scan."""
DEPTH_S: Final = 4.0
"""Kernel buffer for the time in which this process is busy."""
_READ_BYTES: Final = 1 << 16
_SILENCE_S: Final = 0.5


@dataclass(frozen=True)
class BufferRequest:
    """The requested setup."""

    modalities: Modalities
    rate_hz: float
    trigger: str | None
    write: dict[str, str]


def set_rate(device: IioDevice, channels: list[str], rate_hz: float) -> float:
    """Set the device to ``rate_hz``, or its next higher rate; returns the rate in effect.

    Raises:
        OSError: it cannot be written.
    """
    rates = [
        device.shared(channel, "sampling_frequency") for channel in channels
    ]  # of each channel type, or of the device
    now = rate_hz
    for channel, attribute in zip(channels, rates, strict=True):
        if attribute is None:
            continue
        can = device.frequencies(channel)
        chosen = next((rate for rate in can if rate >= rate_hz * 0.999), can[-1] if can else rate_hz)
        have = device.number(attribute)
        if have is None or abs(have - chosen) > 1e-3 * chosen:
            device.write(attribute, f"{chosen:g}")
        now = device.number(attribute) or chosen
    return now


@dataclass(eq=False, repr=False)
class Buffer:
    """One capture, from :meth:`start` to :meth:`stop`; blocking, so it needs a thread of its own.

    Args:
        device: the IIO device.
        node: ``/dev/iio:deviceN``.
        request: the requested setup.
        clock: of the agent.
        counters: see :class:`edge_agent.sources.timestamps.ClockMapping`.
    """

    device: IioDevice
    node: Path
    request: BufferRequest
    clock: Clock
    counters: MutableMapping[str, float]

    def __post_init__(self) -> None:
        self._started = False
        self._fd: int | None = None
        self.rate_hz = self.request.rate_hz
        """The rate in effect."""

    @property
    def runs(self) -> bool:
        """Whether :meth:`start` succeeded."""
        return self._fd is not None

    def start(self) -> None:
        """Set up the buffer and enable it.

        Raises:
            OSError: an attribute cannot be written or opened, or the driver refuses.
            Transient: the device has no buffer, or not with these channels.
        """
        device, request = self.device, self.request
        scan, buffer = device.scan_folder, device.buffer_folder
        if scan is None or buffer is None:
            raise Transient(f"{device.name} has no buffer: set mode = 'poll'")
        channels = names(request.modalities)
        for attribute, value in request.write.items():
            device.write(attribute, value)
        rate = set_rate(device, channels, request.rate_hz)
        if request.trigger is not None:
            set_trigger_rate(device, request.trigger, request.rate_hz)
            device.write("trigger/current_trigger", request.trigger)
        stamped = device.text(f"{scan}/in_timestamp_en") is not None
        have = device.scanned()
        if missing := [channel for channel in channels if channel not in have]:
            raise Transient(f"{device.name}: {', '.join(missing)}: not in the buffer, which has {have}")
        if device.text(f"{buffer}/enable") != "1":
            self._choose(scan, [name for name in have if name in channels], have, stamped=stamped)
            if (length := device.number(f"{buffer}/length")) is None or length < rate * DEPTH_S:
                device.write(f"{buffer}/length", str(max(16, round(rate * DEPTH_S))))
            if device.text(f"{buffer}/watermark") is not None:
                device.write(f"{buffer}/watermark", str(max(1, round(rate * WAKE_S))))
            self._switch_on(buffer)
        on = [name for name in have if device.text(f"{scan}/in_{name}_en") == "1"]
        if off := [name for name in channels if name not in on]:
            raise Transient(
                f"{device.name}: its buffer runs without {', '.join(off)}: did another program enable it?"
            )
        stamped = stamped and device.text(f"{scan}/in_timestamp_en") == "1"
        self._layout = ScanLayout(device.element(name) for name in [*on, *["timestamp"] * stamped])
        self._rows = SampleRows(device, request.modalities, buffered=True)
        clock = device.text("current_timestamp_clock") or "realtime"
        self._map = ClockMapping(clock, self.clock.wall, self.counters) if stamped else None
        self._blocks = BlockTimestamps(rate)
        self.rate_hz = rate
        self._fd = os.open(self.node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _switch_on(self, buffer: str) -> None:
        try:
            self.device.write(f"{buffer}/enable", "1")
        except OSError as error:
            if self.device.text("trigger/current_trigger") == "":
                words = "it has no trigger; perhaps it needs one: set trigger (lichen agent sensors list)"
                raise Transient(f"{self.device.name}: its buffer does not start: {words}: {error}") from None
            raise
        self._started = True

    def _choose(self, scan: str, wanted: list[str], have: list[str], *, stamped: bool) -> None:
        """Select the channels of the scan; unused channels cost bus time."""
        for name in have:
            self.device.write(f"{scan}/in_{name}_en", "1" if name in wanted else "0")
        if stamped:
            self.device.write(f"{scan}/in_timestamp_en", "1")

    def stop(self) -> None:
        """Disable the buffer if it was enabled here; a device that is gone is already off."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        folder = self.device.buffer_folder
        if self._started and folder is not None:
            self._started = False
            try:
                self.device.write(f"{folder}/enable", "0")
            except OSError:
                return

    def run(self, outlet: ThreadOutlet) -> None:
        """Read until the outlet stops; to be called after :meth:`start`.

        Raises:
            OSError: the device is gone.
        """
        fd, rest = self._fd, b""
        while fd is not None and not outlet.stopped:
            if not outlet.readable(fd, _SILENCE_S):
                if not self.device.path.exists():
                    raise OSError(f"{self.device.id} is gone")
                continue
            try:
                block = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not block:
                raise OSError(f"{self.node}: the device is gone")
            rest = self._hand_over(rest + block, outlet)

    def _hand_over(self, block: bytes, outlet: ThreadOutlet) -> bytes:
        """Put all whole scans; returns the remaining bytes."""
        whole = len(block) // self._layout.size * self._layout.size
        if whole:
            now = self.clock.wall()
            numbers = self._layout.read(block[:whole])
            t = self._times(numbers, whole // self._layout.size, now)
            for name, values in self._rows.of(numbers).items():
                outlet.put(name, t, values)
        return block[whole:]

    def _times(self, numbers: dict[str, NDArray[Any]], n: int, now: float) -> NDArray[np.float64]:
        """Unix seconds of ``n`` scans: from their stamps, else estimated from the read at ``now``."""
        stamps = numbers.get("timestamp")
        unix = None if self._map is None or stamps is None else self._map.unix(stamps[:, 0])
        return self._blocks.times(n, now) if unix is None else unix


def set_trigger_rate(device: IioDevice, trigger: str, rate_hz: float) -> None:
    """Set the rate of a timer trigger (``iio-trig-hrtimer``); other triggers have none.

    Raises:
        Transient: there is no such trigger; lists the existing ones.
        OSError: its rate cannot be written.
    """
    folder = device.path.parent
    every = {trigger.name: trigger for trigger in map(IioDevice, sorted(folder.glob("trigger*")))}
    if trigger not in every:
        known = ", ".join(every) or "none"
        raise Transient(f"trigger {trigger!r} is not there ({folder}); there are: {known}")
    timer = every[trigger]
    have = timer.number("sampling_frequency")
    if have is not None and abs(have - rate_hz) > 1e-3 * rate_hz:
        timer.write("sampling_frequency", f"{rate_hz:g}")
