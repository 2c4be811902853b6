"""Device files: whether those that sources name exist, and whether the service may read them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.doctor.findings import Finding, fail, ok, warn
from edge_agent.doctor.service_account import ServiceUser, Unit, group_name
from runtime import exit_codes

_KINDS: Final = {
    "i2c": ("i2c-*",),
    "gpio": ("gpiochip*",),
    "serial": ("ttyUSB*", "ttyACM*", "ttyAMA*", "serial[0-9]*"),
    "iio": ("iio:device*",),
}
"""Kinds of device files, and the name of the drop-in in systemd/examples."""


@dataclass(frozen=True)
class HardwareNode:
    """A device file. ``group``: its name; ``readable``: for the user in question; None: it does not exist."""

    path: str
    kind: str
    readable: bool | None
    group: str = ""
    named_by: str = ""
    """``source[2]``, or empty if no source names it."""


def probe(
    sources: Iterable[Mapping[str, Any]], person: ServiceUser, dev: Path = Path("/dev")
) -> list[HardwareNode]:
    """All device files of the kinds that sensors have, and those that sources name."""
    named = {path: f"source[{i}]" for i, table in enumerate(sources) for path in _paths(table, dev)}
    found = {
        str(path): kind for kind, globs in _KINDS.items() for glob in globs for path in sorted(dev.glob(glob))
    }
    return [_look(path, kind_of(path, dev), person, named.get(path, "")) for path in sorted({*found, *named})]


def _paths(value: object, dev: Path) -> Iterator[str]:
    """Strings in a table that name a file below ``dev``, as written."""
    if isinstance(value, str) and value.startswith(f"{dev}/"):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _paths(inner, dev)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths(inner, dev)


def kind_of(path: str, dev: Path = Path("/dev")) -> str:
    """One of :data:`_KINDS`, or empty; a link of by-id or by-path is a serial line's."""
    relative = Path(path).relative_to(dev)
    if relative.parts[0] == "serial":
        return "serial"
    return next((kind for kind, globs in _KINDS.items() if any(relative.match(glob) for glob in globs)), "")


def _look(path: str, kind: str, person: ServiceUser, named_by: str) -> HardwareNode:
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return HardwareNode(path, kind, None, named_by=named_by)
    except OSError:
        return HardwareNode(path, kind, readable=False, named_by=named_by)
    return HardwareNode(path, kind, person.may(os.R_OK, status), group_name(status.st_gid), named_by)


def judge(nodes: Iterable[HardwareNode], person: ServiceUser, unit: Unit) -> list[Finding]:
    """One finding for each device that a source names, and one for the rest."""
    nodes = list(nodes)
    found = [_judged(node, person, unit) for node in nodes if node.named_by]
    rest = [node.path for node in nodes if not node.named_by]
    if rest:
        found.append(ok("hardware.present", f"named by no source: {', '.join(rest[:12])}"))
    return found or [ok("hardware.present", "no sensor's device files, and no source names one")]


def _judged(node: HardwareNode, person: ServiceUser, unit: Unit) -> Finding:
    check, where = "hardware.access", f"{node.path} ({node.named_by})"
    example = f"systemd/examples/agent-{node.kind}.conf" if node.kind else "an example of systemd/examples"
    if node.readable is None:
        todo = (
            "plug it in, load its driver (dmesg), or correct the path; /dev/serial/by-id has names that stay"
        )
        return warn(check, f"{where} is not there", todo)
    if not node.readable:
        todo = (
            f"give the service the group {node.group or 'that owns it'}: copy {example} to "
            f"/etc/systemd/system/lichen-agent.service.d/ (by hand: usermod -aG {node.group} {person.name})"
        )
        return fail(check, f"{where} is closed to {person.name}", todo)
    if unit.installed and unit.private_devices:
        todo = f"copy {example} to /etc/systemd/system/lichen-agent.service.d/, then systemctl daemon-reload"
        return fail(
            check, f"{where} is hidden from the service (PrivateDevices=yes)", todo, exit_codes.CONFIG
        )
    return ok(check, f"{where} is open to {person.name}")
