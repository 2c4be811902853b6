"""Operator decisions: each function runs in one transaction of the identity store."""

from typing import Any, Final, Literal, cast

from coordinator.storage.engines.shared_tables import Statements
from protocol.errors import Reason, Refused

PUT_META: Final = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
Status = Literal["pending", "active", "revoked"]
Standing = Literal["unknown", "pending", "active", "revoked"]
_DAY_S: Final = 86400.0
KEPT_S: Final = 30 * _DAY_S
"""Used invites and expired certificates are deleted after this time: the clock of the broker or a device may
be late."""


def approve(
    tables: Statements, device: str, now: float, *, unknown: bool, seen: Standing | None = None
) -> Standing:
    """See :meth:`IdentityStore.approve`.

    Raises:
        Refused: UNKNOWN_DEVICE, REVOKED, or WRONG_ROUND.
    """
    row = tables.execute("SELECT status FROM devices WHERE name = ?", (device,)).fetchone()
    _require(device, row, seen)
    if row is None and not unknown:
        raise Refused(Reason.UNKNOWN_DEVICE, f"no device {device}; lichen device ls shows those there are")
    if row is not None and row["status"] == "revoked":
        raise Refused(
            Reason.REVOKED,
            f"the certificate of {device} was revoked for good; to admit the device again: "
            f"lichen device invite {device}, then enroll it again",
        )
    tables.execute("UPDATE devices SET status = 'active', changed_wall = ? WHERE name = ?", (now, device))
    tables.execute(
        "INSERT INTO released VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET wall = excluded.wall",
        (device, now),
    )
    return "unknown" if row is None else cast("Status", row["status"])


def _require(device: str, row: Any, seen: Standing | None) -> None:
    """Check that a device's status is what the operator saw."""
    now = "unknown" if row is None else row["status"]
    if seen is not None and now != seen:
        words = f"{device} is {now} now, and no more {seen}: somebody acted before; look at it first"
        raise Refused(Reason.WRONG_ROUND, words)


def revoke(
    tables: Statements, device: str, now: float, *, unknown: bool, seen: Standing | None = None
) -> int:
    """See :meth:`IdentityStore.revoke`.

    Raises:
        Refused: UNKNOWN_DEVICE, or WRONG_ROUND.
    """
    row = tables.execute("SELECT status FROM devices WHERE name = ?", (device,)).fetchone()
    _require(device, row, seen)
    if row is None and not unknown:
        raise Refused(
            Reason.UNKNOWN_DEVICE,
            f"no device {device}; lichen device ls shows those there are (--unknown bars a name that is not "
            "listed)",
        )
    tables.execute(
        "INSERT INTO devices (name, status, key, changed_wall) VALUES (?, 'revoked', '', ?)"
        " ON CONFLICT (name) DO UPDATE SET status = 'revoked', changed_wall = excluded.changed_wall",
        (device, now),
    )
    tables.execute("DELETE FROM invites WHERE device = ? AND used_wall IS NULL", (device,))
    return tables.execute(
        "UPDATE certificates SET revoked_wall = ? WHERE device = ? AND revoked_wall IS NULL", (now, device)
    ).rowcount


def next_list(tables: Statements, now: float) -> tuple[int, float]:
    """See :meth:`IdentityStore.next_list`."""
    rows = tables.execute("SELECT key, value FROM meta WHERE key LIKE 'list_%'")
    last = {row["key"]: float(row["value"]) for row in rows}
    number, after = int(last.get("list_number", 0)) + 1, last.get("list_begin", 0.0) + 1
    # A begin near the present comes from a clock that was ahead: it must not lock devices out.
    begin = max(after, float(int(now - _DAY_S))) if after < now - _DAY_S / 2 else float(int(now - _DAY_S))
    for key, value in (("list_number", number), ("list_begin", begin)):
        tables.execute(PUT_META, (key, str(value)))
    return number, begin


def tidy(tables: Statements, now: float) -> None:
    """Delete expired invites and certificates.

    Revoked certificates stay for ever: a clock that is ahead for an hour must not admit them again. Their
    number is bounded by the operator's decisions.
    """
    old = now - KEPT_S
    tables.execute("DELETE FROM invites WHERE expires_wall < ? AND coalesce(used_wall, 0) < ?", (old, old))
    tables.execute("DELETE FROM certificates WHERE not_after < ? AND revoked_wall IS NULL", (old,))
