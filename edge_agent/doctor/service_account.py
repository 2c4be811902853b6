"""Whose eyes the doctor looks through: the service's user, where root asks."""

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from typing import Final

SERVICE: Final = "lichen-agent"
"""The user of systemd/lichen-agent.service."""


@dataclass(frozen=True)
class ServiceUser:
    """A user as the kernel knows it. ``groups``: with the main one, and what the unit adds."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, wanted: int, status: os.stat_result) -> bool:
        """Whether the mode bits let this user in; ``wanted``: of ``os.R_OK``, ``W_OK`` and ``X_OK``."""
        mode = stat.S_IMODE(status.st_mode)
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return mode >> 6 & wanted == wanted
        if status.st_gid in self.groups:
            return mode >> 3 & wanted == wanted
        return mode & wanted == wanted


def whose(name: str | None = None, added: frozenset[str] = frozenset()) -> ServiceUser:
    """The user called ``name``; None: who runs this, or the service's user where root does.

    Args:
        name: of a user.
        added: groups that the unit gives besides.

    Raises:
        KeyError: there is no such user.
    """
    if name is None and os.geteuid() == 0:
        try:
            return whose(SERVICE, added)
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
    """Of a group, or its number."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
