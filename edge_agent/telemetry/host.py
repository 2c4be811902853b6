"""The machine's readings, from ``/proc`` and ``/sys`` of Linux; None where there is none."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
_RESIDENT: Final = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)
_COLDEST_C, _HOTTEST_C = -100.0, 300.0
"""A zone outside of this has no sensor behind it."""


@dataclass(frozen=True)
class HostReading:
    """One reading; the fields are those of ``protocol.telemetry.Telemetry``."""

    disk_free_bytes: int | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    load_share: float | None = None
    temperature_c: float | None = None


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def read_host(state_dir: Path, system: Path = Path("/")) -> HostReading:
    """Read everything; touches the disk of ``state_dir``. ``system``: where ``proc`` and ``sys`` are."""
    load = free = None
    with suppress(OSError):
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    with suppress(OSError):
        room = os.statvfs(state_dir)
        free = room.f_bavail * room.f_frsize
    return HostReading(
        disk_free_bytes=free,
        memory_bytes=_kilobytes(system / "proc/self/status", _RESIDENT),
        memory_available_bytes=_kilobytes(system / "proc/meminfo", _AVAILABLE),
        load_share=load,
        temperature_c=_hottest_c(system / "sys/class/thermal"),
    )


def _kilobytes(file: Path, line: re.Pattern[str]) -> int | None:
    try:
        found = line.search(file.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])


def _hottest_c(folder: Path) -> float | None:
    zones = []
    for file in folder.glob("thermal_zone*/temp"):
        with suppress(OSError, ValueError):  # some zones refuse to be read
            zones.append(int(file.read_text(encoding="ascii")) / 1000.0)
    return max((zone for zone in zones if _COLDEST_C <= zone <= _HOTTEST_C), default=None)
