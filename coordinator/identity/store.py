"""The identity store: invites, devices, and every certificate that still matters.

Tables of their own, because the daemon and ``lichen device`` write it at the same time. Of a token only the
SHA-256 is stored. Synchronous and thread-safe; every change is on disk when the method returns.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import structlog

from coordinator.identity import decisions
from coordinator.identity.authority import Issued
from coordinator.identity.certificates import Presented, Revoked
from coordinator.identity.decisions import KEPT_S, Standing, Status
from coordinator.identity.invites import hexadecimal, is_newer, keep, redeem_invite
from coordinator.identity.invites import renewable as _renewable
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.location import Location
from protocol.errors import Reason, Refused

log = structlog.get_logger(__name__)

FILE: Final = IDENTITIES.file
MAX_OPEN_INVITES: Final = 10_000


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One registered device."""

    name: str
    status: Status
    key: str
    serial: str | None
    not_after: float | None
    enrolled_wall: float | None


@dataclass(frozen=True, slots=True)
class InviteRow:
    """An unused invite."""

    device: str | None
    made_wall: float
    expires_wall: float


class IdentityStore:
    """Opens (and creates) the store of a coordinator; a folder stands for the SQLite files in it.

    Raises:
        Misconfigured: the file is not an identity store, or access is denied.
        Transient: the disk is full.
    """

    def __init__(self, where: Location | Path, *, wall: Callable[[], float] = time.time) -> None:
        self._tables = Location.at(where).shared(IDENTITIES)
        self._wall = wall
        self._mark: tuple[int, int] | None = None
        self._standing: dict[str, Status] = {}
        self._released: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._tables.close()

    # ---- invites and enrolment

    def invite(self, device: str | None, lasts_s: float) -> str:
        """A new token; it works once, for ``device`` (None: for any new name, which then waits for approval).

        Raises:
            Refused: too many invites are open (FULL).
        """
        token, now = secrets.token_urlsafe(32), self._wall()
        mark = hashlib.sha256(token.encode()).hexdigest()
        with self._tables.change() as tables:
            decisions.tidy(tables, now)
            open_ = tables.execute(
                "SELECT count(*) FROM invites WHERE used_wall IS NULL AND expires_wall > ?", (now,)
            ).fetchone()[0]
            if open_ >= MAX_OPEN_INVITES:
                raise Refused(Reason.FULL, f"{open_} invites are open; wait until some expire")
            tables.execute(
                "INSERT INTO invites (id, hash, device, made_wall, expires_wall) VALUES (?, ?, ?, ?, ?)",
                (mark[:32], mark, device, now, now + lasts_s),
            )
        return token

    def claim(self, token: str, device: str, key: str) -> tuple[Status, str | None]:
        """Use a token for a device name and a key digest; repeating the call gives the same answer.

        Returns:
            ``pending`` or ``active``; and the certificate, if one was issued for this token and key.

        Raises:
            Refused: BAD_INVITE, or REVOKED.
        """
        with self._tables.change() as tables:
            return redeem_invite(tables, token, device, key, self._wall())

    def keep(self, device: str, key: str, issued: Issued) -> str:
        """Store a certificate before it is sent; earlier certificates of the device are revoked.

        Returns:
            The valid certificate: if two requests were answered at once, the first one's.

        Raises:
            Refused: meanwhile the device was revoked, or another key enrolled under its name.
        """
        with self._tables.change() as tables:
            decisions.tidy(tables, self._wall())
            return keep(tables, device, key, issued, self._wall())

    def renewable(self, device: str, presented: Presented, key: str) -> str | None:
        """Check whether a certificate may be exchanged for one of ``key``.

        A certificate newer than everything known of the device is accepted: the store was restored from a
        backup.

        Returns:
            The certificate that was issued for this exchange before (its answer was lost); None if it is to
            be issued now.

        Raises:
            Refused: REVOKED, UNKNOWN_DEVICE, or FULL (too often).
        """
        with self._tables.change() as tables:
            return _renewable(tables, device, presented, key, self._wall())

    def renew(self, device: str, presented: Presented, key: str, issued: Issued) -> str:
        """Exchange a certificate for a new one; the old one stays valid until it expires.

        Returns:
            The valid certificate.

        Raises:
            Refused: as :meth:`renewable`.
        """
        old, now = hexadecimal(presented.serial), self._wall()
        with self._tables.change() as tables:
            decisions.tidy(tables, now)
            known = _renewable(tables, device, presented, key, now)
            if known is not None:
                return known
            if restored := is_newer(tables, device, presented):
                tables.execute(
                    "INSERT INTO certificates VALUES (?, ?, ?, ?, NULL)",
                    (old, device, presented.issued_wall, presented.not_after),
                )
            new = hexadecimal(issued.serial)
            tables.execute(
                "UPDATE devices SET key = ?, certificate = ?, serial = ?, before = ?, not_after = ?,"
                " changed_wall = ? WHERE name = ?",
                (key, issued.certificate_pem, new, old, issued.not_after, now, device),
            )
            tables.execute(
                "INSERT INTO certificates VALUES (?, ?, ?, ?, NULL)", (new, device, now, issued.not_after)
            )
        if restored:
            why = "the identity store was restored from a backup that is older than the certificate"
            log.warning("newer_certificate_accepted", device=device, certificate=old, why=why)
        return issued.certificate_pem

    # ---- the operator

    def approve(self, device: str, *, unknown: bool = False, seen: Standing | None = None) -> Standing:
        """Admit a pending device; for an admitted one, end its quarantine.

        Args:
            device: its name.
            unknown: also for an unregistered name, in a fleet without certificates.
            seen: its status when the operator looked; None: any.

        Returns:
            Its status before.

        Raises:
            Refused: UNKNOWN_DEVICE, REVOKED, or WRONG_ROUND: its status is another now.
        """
        with self._tables.change() as tables:
            return decisions.approve(tables, device, self._wall(), unknown=unknown, seen=seen)

    def revoke(self, device: str, *, unknown: bool = False, seen: Standing | None = None) -> int:
        """Revoke all certificates of a device, delete its unused invites, and bar its name.

        Args:
            device: its name.
            unknown: bar the name even if it is not registered (after the store was lost).
            seen: its status when the operator looked; None: any.

        Returns:
            Number of certificates revoked by this call.

        Raises:
            Refused: UNKNOWN_DEVICE, or WRONG_ROUND: its status is another now.
        """
        with self._tables.change() as tables:
            return decisions.revoke(tables, device, self._wall(), unknown=unknown, seen=seen)

    def devices(self) -> list[DeviceRow]:
        """All devices, by name."""
        query = "SELECT name, status, key, serial, not_after, enrolled_wall FROM devices ORDER BY name"
        return [DeviceRow(*row) for row in self._tables.rows(query)]

    def invites(self) -> list[InviteRow]:
        """Invites that still work, the oldest first."""
        query = (
            "SELECT device, made_wall, expires_wall FROM invites WHERE used_wall IS NULL AND expires_wall > ?"
            " ORDER BY made_wall"
        )
        return [InviteRow(*row) for row in self._tables.rows(query, self._wall())]

    # ---- the broker

    def barred(self) -> list[str]:
        """Revoked names, sorted."""
        found = self._tables.rows("SELECT name FROM devices WHERE status = 'revoked' ORDER BY 1")
        return [row["name"] for row in found]

    def revoked(self) -> list[Revoked]:
        """Revoked certificates, except those that expired long ago, by serial."""
        query = (
            "SELECT serial, revoked_wall FROM certificates WHERE revoked_wall IS NOT NULL AND not_after > ?"
            " ORDER BY serial"
        )
        rows = self._tables.rows(query, self._wall() - KEPT_S)
        return [Revoked(int(row["serial"], 16), row["revoked_wall"]) for row in rows]

    def next_list(self) -> tuple[int, float]:
        """Number and begin of the next revocation list, each larger than the last one's.

        The begin lies a day back, because the broker's clock may be late. Two lists within a second still
        differ by one: OpenSSL keeps all lists and uses the newest.
        """
        with self._tables.change() as tables:
            return decisions.next_list(tables, self._wall())

    def written(self) -> str:
        """Digest of the content of the broker's files; empty if unknown."""
        return self._meta("written")

    def published(self) -> str:
        """Digest of the content that the broker has proved to use; empty if unknown."""
        return self._meta("published")

    def note_written(self, mark: str) -> None:
        """Record the content of the broker's files (empty: it changes now); the proof becomes invalid."""
        with self._tables.change() as tables:
            rows = [("written", mark), ("published", "")]
            tables.executemany(decisions.PUT_META, rows)
            tables.execute(
                "INSERT INTO meta VALUES ('unproven_wall', ?) ON CONFLICT (key) DO NOTHING",
                (str(self._wall()),),
            )

    def note_published(self, mark: str) -> None:
        """Record that the broker uses ``mark``, if its files still hold that."""
        with self._tables.change() as tables:
            row = tables.execute("SELECT value FROM meta WHERE key = 'written'").fetchone()
            if row is not None and row["value"] == mark:
                tables.execute(decisions.PUT_META, ("published", mark))
                tables.execute("DELETE FROM meta WHERE key = 'unproven_wall'")

    def unproven_since(self) -> float | None:
        """Since when the broker may not use its files (Unix seconds); None: it has proved that it does."""
        found = self._meta("unproven_wall")
        return float(found) if found else None

    def _meta(self, key: str) -> str:
        rows = self._tables.rows("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0]["value"]) if rows else ""

    # ---- the daemon

    def refresh(self) -> None:
        """Read the data behind :meth:`standing` and :meth:`released_at` again if anything changed."""
        mark = self._tables.mark()
        if mark == self._mark:
            return
        devices = self._tables.rows("SELECT name, status FROM devices")
        released = self._tables.rows("SELECT name, wall FROM released")
        self._standing = {row["name"]: row["status"] for row in devices}
        self._released = {row["name"]: row["wall"] for row in released}
        self._mark = mark

    def standing(self, device: str) -> Standing:
        """The operator's decision on a device, as of the last :meth:`refresh`. Reads no disk."""
        return self._standing.get(device, "unknown")

    def released_at(self, device: str) -> float | None:
        """When the operator last approved it (Unix seconds; None: never), as of the last :meth:`refresh`."""
        return self._released.get(device)
