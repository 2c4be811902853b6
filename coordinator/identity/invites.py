"""Exchange of a token or an old certificate for a new certificate: each rule runs in one transaction."""

import hashlib
import hmac
from typing import Any, Final, Literal

from coordinator.identity.authority import Issued
from coordinator.identity.certificates import Presented
from coordinator.storage.engines.shared_tables import Statements
from protocol.errors import Reason, Refused

MAX_RENEWALS_A_DAY: Final = 20
_DAY_S: Final = 86400.0


def hexadecimal(serial: int) -> str:
    """A serial number as the identity store writes it."""
    return format(serial, "x")


def redeem_invite(
    tables: Statements, token: str, device: str, key: str, now: float
) -> tuple[Literal["pending", "active"], str | None]:
    """See :meth:`IdentityStore.claim`.

    Raises:
        Refused: BAD_INVITE, or REVOKED.
    """
    invite = _find(tables, token)
    if invite is None:
        raise Refused(Reason.BAD_INVITE, "this invite is unknown; ask for a new one")
    if invite["key"] is None:
        _first_use(tables, invite, device, key, now)
    elif not hmac.compare_digest(invite["key"], key) or invite["claimed"] != device:
        raise Refused(Reason.BAD_INVITE, "this invite was used already, by another key or for another name")
    found = tables.execute(
        "SELECT status, key, certificate FROM devices WHERE name = ?", (device,)
    ).fetchone()
    if found is not None and found["status"] == "revoked":
        raise Refused(Reason.REVOKED, f"{device} was revoked")
    if found is None or found["key"] != key:
        raise Refused(Reason.BAD_INVITE, f"since this invite was used, {device} has another key")
    return found["status"], found["certificate"]


def _find(tables: Statements, token: str) -> Any:
    """Look an invite up by the first half of its hash; the rest is compared in constant time."""
    mark = hashlib.sha256(token.encode()).hexdigest()
    row: Any = tables.execute("SELECT * FROM invites WHERE id = ?", (mark[:32],)).fetchone()
    return row if row is not None and hmac.compare_digest(row["hash"], mark) else None


def _first_use(tables: Statements, invite: Any, device: str, key: str, now: float) -> None:
    """Bind the token to name and key, and register the device."""
    if now > invite["expires_wall"]:
        raise Refused(Reason.BAD_INVITE, "this invite has expired; ask for a new one")
    if invite["device"] is not None and invite["device"] != device:
        raise Refused(Reason.BAD_INVITE, f"this invite is for another device than {device}")
    known = tables.execute("SELECT 1 FROM devices WHERE name = ?", (device,)).fetchone()
    if invite["device"] is None and known is not None:
        raise Refused(
            Reason.BAD_INVITE,
            f"the name {device} is taken; choose another, or ask for an invite for that name",
        )
    tables.execute(
        "UPDATE invites SET used_wall = ?, key = ?, claimed = ? WHERE id = ?",
        (now, key, device, invite["id"]),
    )
    # An invite for a name is the operator's approval of it, also for a revoked name.
    status = "pending" if invite["device"] is None else "active"
    tables.execute(
        "INSERT INTO devices (name, status, key, changed_wall) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET status = excluded.status, key = excluded.key, certificate = NULL,"
        " serial = NULL, before = NULL, not_after = NULL, changed_wall = excluded.changed_wall",
        (device, status, key, now),
    )


def keep(tables: Statements, device: str, key: str, issued: Issued, now: float) -> str:
    """See :meth:`IdentityStore.keep`.

    Raises:
        Refused: the device was revoked, or has another key now.
    """
    row = tables.execute("SELECT status, key, certificate FROM devices WHERE name = ?", (device,)).fetchone()
    if row is None or row["status"] != "active":
        raise Refused(Reason.REVOKED, f"{device} was revoked")
    if row["key"] != key:
        raise Refused(Reason.BAD_INVITE, f"since this invite was used, {device} has another key")
    if row["certificate"] is not None:
        return str(row["certificate"])
    serial = hexadecimal(issued.serial)
    tables.execute(
        "UPDATE certificates SET revoked_wall = ? WHERE device = ? AND revoked_wall IS NULL", (now, device)
    )
    tables.execute(
        "INSERT INTO certificates VALUES (?, ?, ?, ?, NULL)", (serial, device, now, issued.not_after)
    )
    tables.execute(
        "UPDATE devices SET certificate = ?, serial = ?, not_after = ?, enrolled_wall = ?, changed_wall = ?"
        " WHERE name = ?",
        (issued.certificate_pem, serial, issued.not_after, now, now, device),
    )
    return issued.certificate_pem


def renewable(tables: Statements, device: str, presented: Presented, key: str, now: float) -> str | None:
    """See :meth:`IdentityStore.renewable`.

    Raises:
        Refused: REVOKED, UNKNOWN_DEVICE, or FULL.
    """
    old = hexadecimal(presented.serial)
    row = tables.execute("SELECT * FROM devices WHERE name = ?", (device,)).fetchone()
    if row is None:
        raise Refused(Reason.UNKNOWN_DEVICE, f"{device} is unknown to the coordinator; enroll it again")
    if row["status"] == "revoked":
        raise Refused(Reason.REVOKED, f"{device} was revoked")
    if row["before"] == old and row["key"] == key and row["certificate"] is not None:
        return str(row["certificate"])
    if row["serial"] != old and not is_newer(tables, device, presented):
        # If two hold the same old key, one of them is not the device. Only the first may exchange it.
        raise Refused(
            Reason.REVOKED,
            f"certificate {old} of {device} was exchanged before, with another key; if that was not this "
            "device, its key was stolen: revoke it and enroll it again",
        )
    often = tables.execute(
        "SELECT count(*) FROM certificates WHERE device = ? AND issued_wall > ?", (device, now - _DAY_S)
    ).fetchone()[0]
    if often >= MAX_RENEWALS_A_DAY:
        raise Refused(Reason.FULL, f"{device} got {often} certificates within a day; try again tomorrow")
    return None


def is_newer(tables: Statements, device: str, presented: Presented) -> bool:
    """Whether a certificate of ours is newer than everything that the identity store knows of the device.

    Then the store was restored from an older backup.
    """
    known = tables.execute("SELECT 1 FROM certificates WHERE serial = ?", (hexadecimal(presented.serial),))
    if known.fetchone() is not None:
        return False
    newest = tables.execute(
        "SELECT max(issued_wall) FROM certificates WHERE device = ?", (device,)
    ).fetchone()[0]
    return newest is not None and presented.issued_wall > newest
