"""What the installed unit and its drop-ins say of groups and devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNIT: Final = "lichen-agent.service"
_FOLDERS: Final = (
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
)
"""Later wins."""


@dataclass(frozen=True)
class Unit:
    """Attributes: ``installed``; ``groups`` that it adds; whether it hides ``/dev``."""

    installed: bool = False
    groups: frozenset[str] = frozenset()
    private_devices: bool = False


def read(root: Path = Path("/")) -> Unit:
    """The unit below ``root`` with its drop-ins, in systemd's order."""
    folders = [root / folder.lstrip("/") for folder in _FOLDERS]
    units = [folder / UNIT for folder in folders if (folder / UNIT).is_file()]
    if not units:
        return Unit()
    dropins: dict[str, Path] = {}
    for folder in folders:
        dropins |= {path.name: path for path in (folder / f"{UNIT}.d").glob("*.conf")}
    return parse(
        [path.read_text(errors="replace") for path in (units[-1], *(dropins[n] for n in sorted(dropins)))]
    )


def parse(texts: list[str]) -> Unit:
    """The unit's text and its drop-ins', in order; an empty list of groups resets, as systemd does."""
    groups: list[str] = []
    private = False
    for line in (line.strip() for text in texts for line in text.splitlines()):
        key, _, value = line.partition("=")
        if key == "SupplementaryGroups":
            groups = [*groups, *value.split()] if value.strip() else []
        elif key == "PrivateDevices":
            private = value.strip().lower() in ("yes", "true", "on", "1")
    return Unit(installed=True, groups=frozenset(groups), private_devices=private)
