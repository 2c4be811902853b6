"""Scans of an IIO device from ``/dev/iio:deviceN``: the driver samples, nothing is lost between two reads.

Set up through sysfs, and only what is not so yet is written: a device that a boot script has prepared needs
no right to write. What was switched on here is switched off at the end.
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
"""The driver says that there is something at least so often, where it can wait for more than one scan."""
DEPTH_S: Final = 4.0
"""What the kernel keeps while this process is busy."""
_READ_BYTES: Final = 1 << 16
_SILENCE_S: Final = 0.5


@dataclass(frozen=True)
class BufferRequest:
    """What is to be set up."""

    modalities: Modalities
    rate_hz: float
    trigger: str | None
    write: dict[str, str]


def set_rate(device: IioDevice, channels: list[str], rate_hz: float) -> float:
    """Set the device to ``rate_hz``, or the next rate above that it has; returns what it is then.

    Raises:
        OSError: it cannot be written.
    """
    rates = [
        device.shared(channel, "sampling_frequency") for channel in channels
    ]  # of each type, or of the device
    now = rate_hz
    for channel, attribute in zip(channels, rates, strict=True):
        if attribute is None:
            continue
        can = device.frequencies(channel)
        chosen = next((one for one in can if one >= rate_hz * 0.999), can[-1] if can else rate_hz)
        have = device.number(attribute)
        if have is None or abs(have - chosen) > 1e-3 * chosen:
            device.write(attribute, f"{chosen:g}")
        now = device.number(attribute) or chosen
    return now


class Buffer:
    """One capture, from :meth:`start` to :meth:`stop`; blocking, for a thread of its own.

    Args:
        device: found.
        node: ``/dev/iio:deviceN``.
        wish: what to read.
        clock: of the agent.
        counters: see :class:`edge_agent.sources.timestamps.ClockMapping`.
    """

    def __init__(
        self,
        device: IioDevice,
        node: Path,
        wish: BufferRequest,
        clock: Clock,
        counters: MutableMapping[str, float],
    ) -> None:
        self._device = device
        self._node = node
        self._wish = wish
        self._clock = clock
        self._counters = counters
        self._started = False
        self._fd: int | None = None
        self.rate_hz = wish.rate_hz
        """What the device was set to."""

    @property
    def runs(self) -> bool:
        """Whether :meth:`start` came to its end."""
        return self._fd is not None

    def start(self) -> None:
        """Set it up and switch it on.

        Raises:
            OSError: it cannot be written or opened, or the driver refuses.
            Transient: the device has no buffer, or not with these channels.
        """
        device, wish = self._device, self._wish
        scan, buffer = device.scan_folder, device.buffer_folder
        if scan is None or buffer is None:
            raise Transient(f"{device.name} has no buffer: set mode = 'poll'")
        channels = names(wish.modalities)
        for attribute, value in wish.write.items():
            device.write(attribute, value)
        rate = set_rate(device, channels, wish.rate_hz)
        if wish.trigger is not None:
            set_trigger_rate(device, wish.trigger, wish.rate_hz)
            device.write("trigger/current_trigger", wish.trigger)
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
            raise Transient(f"{device.name}: its buffer runs without {', '.join(off)}: who switched it on?")
        stamped = stamped and device.text(f"{scan}/in_timestamp_en") == "1"
        self._layout = ScanLayout(device.element(name) for name in [*on, *["timestamp"] * stamped])
        self._rows = SampleRows(device, wish.modalities, buffered=True)
        clock = device.text("current_timestamp_clock") or "realtime"
        self._map = ClockMapping(clock, self._clock.wall, self._counters) if stamped else None
        self._blocks = BlockTimestamps(rate)
        self.rate_hz = rate
        self._fd = os.open(self._node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _switch_on(self, buffer: str) -> None:
        try:
            self._device.write(f"{buffer}/enable", "1")
        except OSError as error:
            if self._device.text("trigger/current_trigger") == "":
                words = "it has no trigger; perhaps it needs one: set trigger (lichen agent sensors list)"
                raise Transient(f"{self._device.name}: its buffer does not start: {words}: {error}") from None
            raise
        self._started = True

    def _choose(self, scan: str, wanted: list[str], have: list[str], *, stamped: bool) -> None:
        """The channels of the scan; those that are not wanted cost time on the bus."""
        for name in have:
            self._device.write(f"{scan}/in_{name}_en", "1" if name in wanted else "0")
        if stamped:
            self._device.write(f"{scan}/in_timestamp_en", "1")

    def stop(self) -> None:
        """Switch it off, where it was switched on here; a device that is gone is off."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        folder = self._device.buffer_folder
        if self._started and folder is not None:
            self._started = False
            try:
                self._device.write(f"{folder}/enable", "0")
            except OSError:
                return

    def run(self, outlet: ThreadOutlet) -> None:
        """Read until the outlet stops; after :meth:`start`.

        Raises:
            OSError: the device is gone.
        """
        fd, rest = self._fd, b""
        while fd is not None and not outlet.stopped:
            if not outlet.readable(fd, _SILENCE_S):
                if not self._device.path.exists():
                    raise OSError(f"{self._device.id} is gone")
                continue
            try:
                block = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not block:
                raise OSError(f"{self._node}: the device is gone")
            rest = self._hand_over(rest + block, outlet)

    def _hand_over(self, block: bytes, outlet: ThreadOutlet) -> bytes:
        """Put all whole scans; returns what is left."""
        whole = len(block) // self._layout.size * self._layout.size
        if whole:
            now = self._clock.wall()
            numbers = self._layout.read(block[:whole])
            t = self._times(numbers, whole // self._layout.size, now)
            for name, values in self._rows.of(numbers).items():
                outlet.put(name, t, values)
        return block[whole:]

    def _times(self, numbers: dict[str, NDArray[Any]], n: int, now: float) -> NDArray[np.float64]:
        """Unix seconds of ``n`` scans: their own stamps, else that they were read at ``now``."""
        stamps = numbers.get("timestamp")
        found = None if self._map is None or stamps is None else self._map.unix(stamps[:, 0])
        return self._blocks.times(n, now) if found is None else found


def set_trigger_rate(device: IioDevice, trigger: str, rate_hz: float) -> None:
    """A trigger by timer (``iio-trig-hrtimer``) has a rate of its own; others have none.

    Raises:
        Transient: there is no such trigger; lists those that there are.
        OSError: its rate cannot be written.
    """
    folder = device.path.parent
    every = {one.name: one for one in map(IioDevice, sorted(folder.glob("trigger*")))}
    if trigger not in every:
        known = ", ".join(every) or "none"
        raise Transient(f"trigger {trigger!r} is not there ({folder}); there are: {known}")
    timer = every[trigger]
    have = timer.number("sampling_frequency")
    if have is not None and abs(have - rate_hz) > 1e-3 * rate_hz:
        timer.write("sampling_frequency", f"{rate_hz:g}")
