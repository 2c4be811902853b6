"""Read-only view of the identity store, for other processes: writes nothing, waits for no lock."""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.identity.store import DeviceRow, InviteRow
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.location import Location
from protocol.errors import Misconfigured


@dataclass(frozen=True)
class Identities:
    """Everything of the store that people look at.

    Attributes:
        there: whether there is one: devices of this fleet have certificates, or an operator decided on one.
        devices: all devices by name.
        invites: those that still work, the oldest first.
        released: when the operator last approved a device, Unix seconds.
    """

    there: bool = False
    devices: Mapping[str, DeviceRow] = field(default_factory=dict)
    invites: tuple[InviteRow, ...] = ()
    released: Mapping[str, float] = field(default_factory=dict)


def read_identities(where: Location | Path) -> Identities:
    """All of it, as of one moment.

    Raises:
        Misconfigured: the store exists but cannot be read.
        Transient: the disk is full, another process holds it, or the server cannot be reached.
    """
    location = Location.at(where)
    try:
        with location.reader(IDENTITIES) as tables:
            if tables is None:
                return Identities()
            devices = tables.execute(
                "SELECT name, status, key, serial, not_after, enrolled_wall FROM devices ORDER BY name"
            )
            found = {str(row[0]): DeviceRow(*row) for row in devices}
            invites = tables.execute(
                "SELECT device, made_wall, expires_wall FROM invites"
                " WHERE used_wall IS NULL AND expires_wall > ? ORDER BY made_wall",
                (time.time(),),
            )
            still_open = tuple(InviteRow(*row) for row in invites)
            released = {
                str(row[0]): float(row[1]) for row in tables.execute("SELECT name, wall FROM released")
            }
    except sqlite3.Error as error:
        raise Misconfigured(f"{location.where}: the identity store cannot be read: {error}") from None
    return Identities(True, found, still_open, released)
