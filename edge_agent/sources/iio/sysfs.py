"""IIO devices as the kernel shows them under ``/sys/bus/iio/devices``.

One folder for each device: ``name``, ``in_<channel>_raw`` or ``in_<channel>_input``, ``in_<...>_scale`` and
``_offset`` for one channel or for all of its type, ``sampling_frequency``, ``scan_elements/`` and ``buffer/``
(since Linux 5.11 also both together as ``buffer0/``).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.iio.scan_format import Element, ScanType
from edge_agent.sources.iio.units import kind_of
from protocol.errors import Misconfigured, Transient

_CHANNEL: Final = re.compile(r"in_(.+)_(raw|input)")
_ENABLE: Final = re.compile(r"in_(.+)_en")
_MAX_TEXT: Final = 4096
"""A sysfs attribute has at most one page."""


class Absent(Transient):
    """The device is not present now; it may be plugged in later."""


@dataclass(frozen=True)
class IioDevice:
    """One device. Every attribute is read from sysfs each time, because other programs may change it."""

    path: Path

    @property
    def id(self) -> str:
        """``iio:device0``; the number may change at a restart."""
        return self.path.name

    @property
    def name(self) -> str:
        """The name of the chip, from its driver."""
        return self.text("name") or self.id

    @property
    def bus(self) -> str:
        """Its address on the bus, as ``1-0068`` for address 0x68 on I2C bus 1; the same after restarts."""
        return self.path.resolve().parent.name

    def text(self, attribute: str) -> str | None:
        """One attribute without its line end; None if the device does not have it.

        Raises:
            OSError: it exists and cannot be read.
        """
        try:
            with (self.path / attribute).open("rb") as file:
                return file.read(_MAX_TEXT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None

    def write(self, attribute: str, value: str) -> bool:
        """Set an attribute to ``value`` unless it has that value; returns whether it was written.

        So a device that a boot script has set up needs no write permission.

        Raises:
            OSError: it cannot be written, or the driver rejects the value; names the file.
        """
        if self.text(attribute) == value:
            return False
        path = self.path / attribute
        try:
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # only the driver creates it
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise type(error)(error.errno, f"{value!r} is rejected: {error.strerror}", str(path)) from None
        return True

    def number(self, attribute: str) -> float | None:
        """An attribute as a number; None if there is none."""
        text = self.text(attribute)
        try:
            return None if text is None else float(text.split()[0])
        except (ValueError, IndexError):
            return None

    def shared(self, channel: str, what: str) -> str | None:
        """The attribute ``what`` of a channel: its own, else that of its type, else that of the device."""
        return next((name for name in _candidates(channel, what) if (self.path / name).exists()), None)

    def channels(self) -> dict[str, str]:
        """``raw``, ``input`` (already in the unit) or ``scan`` (only in the buffer), by channel."""
        channels: dict[str, str] = {}
        for file in sorted(self.path.iterdir()):
            if (match := _CHANNEL.fullmatch(file.name)) is not None and channels.get(match[1]) != "raw":
                channels[match[1]] = match[2]
        for name in self.scanned():
            channels.setdefault(name, "scan")
        return channels

    def scanned(self) -> list[str]:
        """Channels that the buffer can hold, in the order of their index; without the timestamp."""
        folder = self.scan_folder
        if folder is None:
            return []
        names = [m[1] for f in (self.path / folder).iterdir() if (m := _ENABLE.fullmatch(f.name)) is not None]
        return sorted(
            (name for name in names if name != "timestamp"),
            key=lambda name: self.number(f"{folder}/in_{name}_index") or 0,
        )

    @property
    def scan_folder(self) -> str | None:
        """The folder that selects the channels of the buffer."""
        return next((name for name in ("scan_elements", "buffer0") if (self.path / name).is_dir()), None)

    @property
    def buffer_folder(self) -> str | None:
        """The folder that enables the buffer."""
        return next((name for name in ("buffer", "buffer0") if (self.path / name).is_dir()), None)

    def element(self, channel: str) -> Element:
        """The format of a channel (or ``timestamp``) in the buffer.

        Raises:
            Transient: the format is unknown, or the channel is not in the buffer.
        """
        folder = self.scan_folder
        index, text = self.number(f"{folder}/in_{channel}_index"), self.text(f"{folder}/in_{channel}_type")
        if index is None or text is None:
            raise Transient(f"{self.name}: channel {channel!r} is not in the buffer of {self.path}")
        try:
            return Element(channel, int(index), ScanType.parse(text))
        except ValueError as error:
            raise Transient(f"{self.path}/{folder}/in_{channel}_type: {error}") from None

    def frequencies(self, channel: str = "") -> list[float]:
        """Rates that can be set, in Hz; empty if the device lists none, or gives a range."""
        name = self.shared(channel, "sampling_frequency_available")
        text = None if name is None else self.text(name)
        if not text or text.startswith("["):
            return []
        return sorted({float(word) for word in text.split() if re.fullmatch(r"[\d.]+", word)})

    def mount(self, channel: str) -> NDArray[np.float64]:
        """The mount matrix (3, 3): board axes from sensor axes; the identity if there is none."""
        kind = kind_of(channel)
        for name in (f"in_{kind}_mount_matrix", f"{kind}_mount_matrix", "in_mount_matrix", "mount_matrix"):
            text = self.text(name)
            words = [] if text is None else text.replace(";", ",").split(",")
            try:
                matrix = np.array([float(word) for word in words])
            except ValueError:
                continue
            if matrix.size == 9 and np.isfinite(matrix).all():  # noqa: PLR2004 - three axes
                return matrix.reshape(3, 3)
        return np.eye(3)


def _candidates(channel: str, what: str) -> Iterator[str]:
    """Names of the attribute, the most specific first: accel_x, accel; voltage0, voltage."""
    base = channel
    while base:
        yield f"in_{base}_{what}"
        plain = re.sub(r"\d+", "", base)
        if plain != base:
            yield f"in_{plain}_{what}"
        base = base.rpartition("_")[0]
    yield what


def devices(sysfs: Path) -> list[IioDevice]:
    """All devices, by number; empty where the kernel has none."""
    folder = sysfs / "bus" / "iio" / "devices"
    try:
        paths = [path for path in folder.iterdir() if path.name.startswith("iio:device")]
    except OSError:
        return []
    return [IioDevice(path) for path in sorted(paths, key=lambda path: (len(path.name), path.name))]


def find(sysfs: Path, wanted: str) -> IioDevice:
    """The device ``wanted``: its name, name and address as ``mpu6050@1-0068``, or ``iio:device0``.

    Raises:
        Absent: there is none now; lists the present devices.
        Misconfigured: several have that name.
    """
    name, _, place = wanted.partition("@")
    every = devices(sysfs)
    matches = [d for d in every if wanted == d.id or (d.name == name and place in {"", d.bus})]
    if len(matches) > 1:
        listed = ", ".join(f"{d.name}@{d.bus}" for d in matches)
        raise Misconfigured(f"device: several are {wanted!r}: write which one: {listed}")
    if not matches:
        listed = ", ".join(f"{d.name}@{d.bus}" for d in every) or "none"
        near = get_close_matches(name, [d.name for d in every], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Absent(
            f"device: no IIO device {wanted!r} in {sysfs}/bus/iio/devices; there are: {listed}{hint}"
        )
    return matches[0]
