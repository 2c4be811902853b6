"""A tree of Industrial I/O devices as the kernel lays it out, with a FIFO for each ``/dev/iio:deviceN``.

The folder under ``bus/iio/devices`` is a link to the device's own place below its bus. Nothing reacts: files
keep what is written to them, and the test reads it.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class FakeDevice:
    """One device; ``path`` is its folder on its bus."""

    def __init__(self, root: Path, number: int, name: str, bus: str, attributes: Mapping[str, str]) -> None:
        self.root = root
        self.id = f"iio:device{number}"
        self.path = root / "sys" / "devices" / "platform" / "i2c-1" / bus / self.id
        self.node = root / "dev" / self.id
        self._attributes = {"name": name, **attributes}
        self._writer = -1
        self.plug()

    def plug(self) -> None:
        for attribute, value in self._attributes.items():
            self.set(attribute, value)
        (self.path / "buffer").mkdir(exist_ok=True) if self.buffered else None
        link = self.root / "sys" / "bus" / "iio" / "devices" / self.id
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.path)
        if self.buffered:
            self.node.parent.mkdir(exist_ok=True)
            os.mkfifo(self.node)
            self._writer = os.open(self.node, os.O_RDWR | os.O_NONBLOCK)

    @property
    def buffered(self) -> bool:
        return any(name.startswith("scan_elements/") for name in self._attributes)

    def unplug(self) -> None:
        (self.root / "sys" / "bus" / "iio" / "devices" / self.id).unlink()
        if self._writer >= 0:
            os.close(self._writer)  # the reader gets the end of file, as from an unplugged device
            self._writer = -1
            self.node.unlink()
        shutil.rmtree(self.path)

    def close(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def set(self, attribute: str, value: str) -> None:
        file = self.path / attribute
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")

    def get(self, attribute: str) -> str:
        return (self.path / attribute).read_text().strip()

    def capture(self, scans: bytes) -> None:
        """Samples of the driver."""
        os.write(self._writer, scans)


MOTION = {
    "in_accel_x_raw": "16384",
    "in_accel_y_raw": "-8192",
    "in_accel_z_raw": "0",
    "in_accel_scale": "0.000598550",
    "in_anglvel_x_raw": "1000",
    "in_anglvel_y_raw": "0",
    "in_anglvel_z_raw": "-1000",
    "in_anglvel_scale": "0.001064724",
    "in_temp_raw": "-521",
    "in_temp_offset": "12420.95",
    "in_temp_scale": "2.941176",
    "sampling_frequency": "10",
    "sampling_frequency_available": "10 20 50 100 200 500",
    "current_timestamp_clock": "realtime",
}
"""An MPU6050 as its driver shows it, at rest."""

_CHANNELS = ("accel_x", "accel_y", "accel_z", "anglvel_x", "anglvel_y", "anglvel_z")
SCAN = {
    **{f"scan_elements/in_{name}_en": "0" for name in _CHANNELS},
    **{f"scan_elements/in_{name}_index": str(i) for i, name in enumerate(_CHANNELS)},
    **{f"scan_elements/in_{name}_type": "be:s16/16>>0" for name in _CHANNELS},
    "scan_elements/in_timestamp_en": "0",
    "scan_elements/in_timestamp_index": "7",
    "scan_elements/in_timestamp_type": "le:s64/64>>0",
    "buffer/length": "2",
    "buffer/enable": "0",
    "buffer/watermark": "1",
    "trigger/current_trigger": "",
}
"""Its buffer."""


def mpu6050(root: Path, number: int = 0, bus: str = "1-0068", *, buffer: bool = False) -> FakeDevice:
    attributes = {**MOTION, **SCAN} if buffer else MOTION
    return FakeDevice(root, number, "mpu6050", bus, attributes)


def trigger(root: Path, name: str, **attributes: str) -> Path:
    """A trigger beside the devices."""
    folder = root / "sys" / "bus" / "iio" / "devices" / "trigger0"
    folder.mkdir(parents=True)
    for attribute, value in {"name": name, **attributes}.items():
        (folder / attribute).write_text(value + "\n")
    return folder


def table(root: Path, **keys: object) -> dict[str, object]:
    """A ``[[source]]`` for it."""
    return {
        "kind": "iio",
        "device": "mpu6050",
        "rate_hz": 50,
        "sysfs": str(root / "sys"),
        "dev": str(root / "dev"),
        "modalities": {"acc": ["accel_x", "accel_y", "accel_z"]},
        **keys,
    }
