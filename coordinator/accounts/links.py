"""One-time links: each function runs in one transaction of the tables of operators."""

from dataclasses import dataclass
from typing import Final

from coordinator.accounts.people import Role, as_role
from coordinator.accounts.secrets import TokenDigest, find, new_token
from coordinator.storage.engines.shared_tables import Statements
from protocol.errors import Reason, Refused

LINK_S: Final = 900.0
"""A link works for so long."""
MAX_LINKS: Final = 100
"""Links that nobody has used, at a time."""
_KEPT_S: Final = 24 * 3600.0
"""A link that was used or is too old is known for so long, so that the answer can say which."""


@dataclass(frozen=True, slots=True)
class SignInLink:
    """A link that works. ``expires``: Unix seconds."""

    name: str
    role: Role
    expires: float


def make(tables: Statements, name: str, role: Role, now: float) -> str:
    """The token of a new link.

    Raises:
        Refused: too many links wait (FULL).
    """
    tables.execute("DELETE FROM links WHERE expires_wall < ?", (now - _KEPT_S,))
    waiting = "SELECT count(*) FROM links WHERE used_wall IS NULL AND expires_wall > ?"
    count = tables.execute(waiting, (now,)).fetchone()[0]
    if count >= MAX_LINKS:
        raise Refused(
            Reason.FULL, f"{count} links wait to be used; one is valid for {LINK_S / 60:.0f} minutes"
        )
    token = new_token()
    digest = TokenDigest.of(token)
    values = (digest.id, digest.hash, name, role, now + LINK_S, None)
    tables.execute("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?)", values)
    return token


def look(tables: Statements, token: str, now: float) -> SignInLink:
    """The link of a token, unused.

    Raises:
        Refused: BAD_INVITE: it is unknown, was used, or is too old.
    """
    row = find(tables, "links", token)
    if row is None:
        raise Refused(Reason.BAD_INVITE, f"this link is not known; {_ANOTHER}")
    if row["used_wall"] is not None:
        raise Refused(
            Reason.BAD_INVITE,
            f"this link was used already; if that was not you, end the session of {row['name']} "
            f"(lichen console person sign-out {row['name']}); {_ANOTHER}",
        )
    if row["expires_wall"] <= now:
        raise Refused(Reason.BAD_INVITE, f"this link is more than {LINK_S / 60:.0f} minutes old; {_ANOTHER}")
    return SignInLink(str(row["name"]), as_role(row["role"]), float(row["expires_wall"]))


def use(tables: Statements, token: str, now: float) -> SignInLink:
    """The same, and it is used with that. Raises as :func:`look`."""
    link = look(tables, token, now)
    tables.execute("UPDATE links SET used_wall = ? WHERE id = ?", (now, TokenDigest.of(token).id))
    return link


_ANOTHER: Final = "lichen console link makes another one"
