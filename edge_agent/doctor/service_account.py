"""The service's user, and the groups and devices that its installed unit grants."""

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVICE: Final = "lichen-agent"
"""The user of systemd/lichen-agent.service."""
UNIT: Final = f"{SERVICE}.service"
_FOLDERS: Final = (
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
)
"""Later folders win."""


@dataclass(frozen=True)
class ServiceUser:
    """A user as the kernel knows it. ``groups``: with the main one, and those that the unit adds."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, wanted: int, status: os.stat_result) -> bool:
        """Whether the mode bits grant this user access; ``wanted``: of ``os.R_OK``, ``W_OK`` and ``X_OK``."""
        mode = stat.S_IMODE(status.st_mode)
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return mode >> 6 & wanted == wanted
        if status.st_gid in self.groups:
            return mode >> 3 & wanted == wanted
        return mode & wanted == wanted


def service_user(name: str | None = None, added: frozenset[str] = frozenset()) -> ServiceUser:
    """The user called ``name``; None: the current user, or the service's user for root.

    Args:
        name: of a user.
        added: further groups from the unit.

    Raises:
        KeyError: there is no such user.
    """
    if name is None and os.geteuid() == 0:
        try:
            return service_user(SERVICE, added)
        except KeyError:
            name = "root"
    if name is None:
        entry = pwd.getpwuid(os.geteuid())
        return ServiceUser(entry.pw_name, entry.pw_uid, frozenset({*os.getgroups(), os.getegid()}))
    entry = pwd.getpwnam(name)
    groups = {*os.getgrouplist(name, entry.pw_gid), *(gid for one in added if (gid := _gid(one)) is not None)}
    return ServiceUser(name, entry.pw_uid, frozenset(groups))


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def group_name(gid: int) -> str:
    """Name of a group, or its number."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True)
class Unit:
    """Attributes: ``installed``; ``groups`` that it adds; whether it hides ``/dev``."""

    installed: bool = False
    groups: frozenset[str] = frozenset()
    private_devices: bool = False


def read_unit(root: Path = Path("/")) -> Unit:
    """The unit below ``root`` with its drop-ins, in systemd's order."""
    folders = [root / folder.lstrip("/") for folder in _FOLDERS]
    units = [folder / UNIT for folder in folders if (folder / UNIT).is_file()]
    if not units:
        return Unit()
    dropins: dict[str, Path] = {}
    for folder in folders:
        dropins |= {path.name: path for path in (folder / f"{UNIT}.d").glob("*.conf")}
    return parse_unit(
        [path.read_text(errors="replace") for path in (units[-1], *(dropins[n] for n in sorted(dropins)))]
    )


def parse_unit(texts: list[str]) -> Unit:
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
