"""Cameras by Video4Linux and libcamera, microphones by ALSA, as the kernel shows them. Opens no device."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_MAX_TEXT_BYTES: Final = 4096
_CODECS: Final = re.compile(r"codec|-isp|rpivid|hevc|m2m|decoder|encoder", re.IGNORECASE)
"""Names of Video4Linux devices that are no cameras: hardware decoders of the SoC."""
_RAW_SENSORS: Final = re.compile(r"unicam|rp1-cfe|csi|isi-cap", re.IGNORECASE)
"""Devices that give the raw data of a sensor, which only libcamera can develop."""
_CAPTURE: Final = re.compile(r"^(\d+)-(\d+): (.*?) : .*: capture \d+")


def cameras(sysfs: Path, dev: Path) -> list[dict[str, Any]]:
    """Capture devices of Video4Linux, each once; and ``libcamera``, if there is a sensor that needs it."""
    found, raw = [], []
    for device in sorted((sysfs / "class" / "video4linux").glob("video*"), key=_number):
        name = _text(device / "name")
        if _CODECS.search(name) or _text(device / "index") not in {"", "0"}:
            continue  # index 1 of a USB camera has its metadata, not images
        if _RAW_SENSORS.search(name):
            raw.append(name)
            continue
        path = _stable(dev / device.name, dev / "v4l" / "by-id")
        found.append({"name": name or device.name, "device": str(path), "toml": _camera_toml(str(path))})
    if raw:
        name = f"camera of the board, {raw[0]}"
        found.append({"name": name, "device": "libcamera", "toml": _camera_toml("libcamera")})
    return found


def microphones(proc: Path) -> list[dict[str, Any]]:
    """ALSA's capture devices, by the card's name, which stays."""
    cards = {path.resolve().name: path.name for path in _links(proc / "asound")}
    found = []
    for line in _text(proc / "asound" / "pcm").splitlines():
        if (match := _CAPTURE.match(line)) is None:
            continue
        card, number = int(match[1]), int(match[2])
        name = cards.get(f"card{card}")
        device = f"plughw:CARD={name},DEV={number}" if name else f"plughw:{card},{number}"
        toml = f'[[source]]\nkind = "microphone"\ndevice = {json.dumps(device)}\nmodality = "sound"\n'
        found.append({"name": match[3], "device": device, "toml": toml})
    return found


def _camera_toml(device: str) -> str:
    return (
        f'[[source]]\nkind = "camera"\ndevice = {json.dumps(device)}\nmodality = "camera"\n'
        "# width, height, channels and rate_hz are the task's\n"
    )


def _stable(path: Path, by_id: Path) -> Path:
    """The name that stays when devices are plugged in in another order, if there is one."""
    return next((link for link in sorted(by_id.glob("*")) if link.resolve() == path.resolve()), path)


def _links(folder: Path) -> Iterable[Path]:
    """``/proc/asound/Name`` -> ``card1``."""
    return (path for path in sorted(folder.glob("*")) if path.is_symlink())


def _number(path: Path) -> int:
    digits = path.name.removeprefix("video")
    return int(digits) if digits.isdigit() else 0


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TEXT_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
