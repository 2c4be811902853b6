"""The machine and its software, for people who look for a fault elsewhere. Reads ``/proc`` and packages."""

import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_FILES: Final = {
    "os": "/etc/os-release",
    "model": "/proc/device-tree/model",
    "memory": "/proc/meminfo",
    "load": "/proc/loadavg",
    "uptime_s": "/proc/uptime",
    "memory_limit": "/sys/fs/cgroup/memory.max",
}
_MAX_BYTES: Final = 4096
_VARIABLES: Final = ("LICHEN_", "AWS_", "PG")
_CPU: Final = re.compile(r"^(?:model name|Model|Hardware|Features|flags)\s*:\s*(.{0,1000})", re.MULTILINE)


def versions() -> dict[str, Any]:
    """Versions of lichen, Python, and every package that lichen names."""
    found: dict[str, Any] = {"python": sys.version, "executable": sys.executable, "packages": {}}
    names = {"lichen", "lichen-lab"}
    with suppress(metadata.PackageNotFoundError):
        names |= {re.split(r"[^A-Za-z0-9._-]", one)[0] for one in metadata.requires("lichen") or ()}
    for name in sorted(names):
        with suppress(metadata.PackageNotFoundError):
            found["packages"][name] = metadata.version(name)
    return found


def environment(folders: dict[str, Path]) -> dict[str, Any]:
    """Operating system, processor, memory, and the disks of some folders; names of lichen's variables."""
    found: dict[str, Any] = {
        "kernel": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "cores_permitted": len(os.sched_getaffinity(0)),
        "variables": sorted(
            name for name in os.environ if name.upper().startswith(("LICHEN_", "AWS_", "PG"))
        ),
        "disks": {name: _disk(path) for name, path in folders.items()},
    }
    for name, file in _FILES.items():
        with suppress(OSError), Path(file).open("rb") as opened:
            found[name] = opened.read(_MAX_BYTES).decode(errors="replace").strip("\x00\n").splitlines()[:20]
    with suppress(OSError), Path("/proc/cpuinfo").open("rb") as opened:
        found["cpu"] = sorted(set(_CPU.findall(opened.read(64 * 1024).decode(errors="replace"))))[:8]
    return found


def _disk(path: Path) -> dict[str, Any]:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        return {"path": str(path), "error": str(error.strerror)}
    return {
        "path": str(path),
        "size_bytes": disk.f_blocks * disk.f_frsize,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "free_files": disk.f_favail,
        "read_only": bool(disk.f_flag & os.ST_RDONLY),
    }
