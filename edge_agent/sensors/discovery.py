"""Discovers IIO devices, serial ports, cameras, microphones and kinds of other packages, with TOML to paste.

Read-only: opens no port and writes nothing.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from edge_agent.sensors.media_devices import cameras, microphones
from edge_agent.sources import REGISTRY, plugins
from edge_agent.sources.iio.sysfs import IioDevice, devices
from edge_agent.sources.iio.units import conversion, kind_of
from edge_agent.sources.system import readings
from protocol.errors import Misconfigured

_NAMES: Final = {
    "accel": "accelerometer",
    "anglvel": "gyroscope",
    "magn": "magnetometer",
    "temp": "temperature",
    "humidityrelative": "humidity",
}
_USUAL_HZ: Final = 50.0
_SLOW_HZ: Final = 10.0
_PORTS: Final = ("ttyUSB*", "ttyACM*", "ttyAMA*", "serial[0-9]")


def discover(sysfs: Path, dev: Path, proc: Path = Path("/proc")) -> dict[str, Any]:
    """All devices, as JSON values; ``sysfs``, ``dev`` and ``proc`` are where the kernel shows devices."""
    every = devices(sysfs)
    taken = [device.name for device in every]
    return {
        "iio": [_iio(device, alone=taken.count(device.name) == 1, roots=(sysfs, dev)) for device in every],
        "serial": [_serial(path) for path in _ports(dev)],
        "camera": cameras(sysfs, dev),
        "microphone": microphones(proc),
        "plugins": [_plugin(name) for name in sorted(plugins.entry_points_by_kind())],
        "system": {"readings": sorted(readings()), "toml": _SYSTEM},
        "kinds": list(REGISTRY.kinds()),
    }


_SYSTEM: Final = """\
[[source]]
kind = "system"
interval_s = 1.0
[source.modalities]
machine = ["cpu.percent", "load.1"]
"""


def _iio(device: IioDevice, *, alone: bool, roots: tuple[Path, Path]) -> dict[str, Any]:
    try:
        have = device.channels()
    except OSError as error:  # unplugged during the discovery
        return {"device": device.id, "error": str(error)}
    name = device.name if alone else f"{device.name}@{device.bus}"
    rates = {rate for channel in have for rate in device.frequencies(channel)}
    triggers = sorted(
        one.name for one in map(IioDevice, device.path.parent.glob("trigger*")) if one.name != one.id
    )
    return {
        "device": name,
        "id": device.id,
        "bus": device.bus,
        "channels": [
            {"name": c, "read": how, "unit": conversion(c, None)[0], "buffer": c in device.scanned()}
            for c, how in have.items()
        ],
        "rates_hz": sorted(rates),
        "triggers": triggers,
        "trigger": device.text("trigger/current_trigger") or None,
        "toml": _iio_toml(name, have, sorted(rates), roots),
    }


def _iio_toml(name: str, channels: Iterable[str], rates: list[float], roots: tuple[Path, Path]) -> str:
    groups: dict[str, list[str]] = {}
    for channel in channels:
        kind = kind_of(channel)
        groups.setdefault(_NAMES.get(kind, kind or "other"), []).append(channel)
    rate = next((one for one in rates if one >= _USUAL_HZ), rates[-1] if rates else _SLOW_HZ)
    lines = ["[[source]]", 'kind = "iio"', f"device = {_quoted(name)}", f"rate_hz = {rate:g}"]
    for key, root in zip(("sysfs", "dev"), roots, strict=True):
        lines += [] if root == Path("/") / key.replace("sysfs", "sys") else [f"{key} = {_quoted(str(root))}"]
    for modality, names in groups.items():
        lines += [f"[source.modalities.{modality}]", f"channels = [{', '.join(map(_quoted, names))}]"]
        units = {conversion(channel, None)[0] for channel in names}
        lines += [f"unit = {_quoted(units.pop())}"] if len(units) == 1 else []
    return "\n".join(lines) + "\n"


def _ports(dev: Path) -> list[Path]:
    """Ports by their stable names; ports without one by their present name."""
    stable = sorted((dev / "serial" / "by-id").glob("*"))
    named = {path.resolve() for path in stable}
    others = [path for pattern in _PORTS for path in sorted(dev.glob(pattern)) if path.resolve() not in named]
    return [*stable, *others]


def _serial(port: Path) -> dict[str, Any]:
    toml = (
        f'[[source]]\nkind = "serial"\nport = {_quoted(str(port))}\nbaud = 9600\nformat = "csv"\n'
        "[source.modalities.sensor]\ncolumns = [0]\n"
    )
    return {"port": str(port), "is": str(port.resolve()), "toml": toml}


def _plugin(name: str) -> dict[str, Any]:
    point = plugins.entry_points_by_kind()[name]
    entry = {"kind": name, "package": plugins.package(point), "object": point.value}
    if name in REGISTRY.kinds():
        return entry | {"error": f"lichen has a kind {name!r} of its own, which is used"}
    try:
        settings = plugins.load(point).settings
    except Misconfigured as error:
        return entry | {"error": str(error)}
    needed = [f"# {key} = ...   (required)" for key, f in settings.model_fields.items() if f.is_required()]
    return entry | {"toml": "\n".join(["[[source]]", f"kind = {_quoted(name)}", *needed]) + "\n"}


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's."""
    return json.dumps(text)
