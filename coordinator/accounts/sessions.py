"""Sessions of the console: each function runs in one transaction of the tables of operators."""

from dataclasses import dataclass
from typing import Any, Final

from coordinator.accounts.people import Role, as_role
from coordinator.accounts.secrets import TokenDigest, find, new_token
from coordinator.storage.engines.shared_tables import Statements

SESSION_S: Final = 12 * 3600.0
"""A session lasts at most so long."""
IDLE_S: Final = 3600.0
"""It ends when the person does nothing for so long; a page that updates itself does not count."""
MAX_OF_A_NAME: Final = 8
MAX_SESSIONS: Final = 1000
"""With more, the one that was idle longest ends."""


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """Who is signed in; times in Unix seconds.

    Attributes:
        name: of the person.
        role: theirs now.
        how: how they signed in.
        began_wall: when.
        used_wall: when they last did something, to the minute.
        expires_wall: when it ends in any case.
    """

    name: str
    role: Role
    how: str
    began_wall: float
    used_wall: float
    expires_wall: float


def begin(tables: Statements, person: tuple[str, Role, str], now: float, until: float) -> str:
    """A new session; the cookie's value.

    Args:
        tables: an open transaction.
        person: name, role, and how they signed in.
        now: Unix seconds.
        until: it ends at the latest then, as their certificate does.
    """
    name, role, how = person
    tables.execute("DELETE FROM sessions WHERE expires_wall <= ? OR used_wall <= ?", (now, now - IDLE_S))
    _make_room(tables, "WHERE name = ?", (name,), MAX_OF_A_NAME)
    _make_room(tables, "", (), MAX_SESSIONS)
    token = new_token()
    digest = TokenDigest.of(token)
    values = (digest.id, digest.hash, name, role, how, now, now, min(now + SESSION_S, until))
    tables.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return token


def _make_room(tables: Statements, where: str, values: tuple[str, ...], most: int) -> None:
    rows = tables.execute(f"SELECT id FROM sessions {where} ORDER BY used_wall", values).fetchall()  # noqa: S608 - ours
    for row in rows[: max(0, len(rows) - most + 1)]:
        tables.execute("DELETE FROM sessions WHERE id = ?", (row["id"],))


def look(row: Any, now: float) -> ConsoleSession | None:
    """A row as a session; None if it is over."""
    if row is None or row["expires_wall"] <= now or row["used_wall"] <= now - IDLE_S:
        return None
    return ConsoleSession(
        str(row["name"]),
        as_role(row["role"]),
        str(row["how"]),
        float(row["began_wall"]),
        float(row["used_wall"]),
        float(row["expires_wall"]),
    )


def use(tables: Statements, token: str, now: float) -> None:
    """Note that the person did something."""
    tables.execute("UPDATE sessions SET used_wall = ? WHERE id = ?", (now, TokenDigest.of(token).id))


def end(tables: Statements, token: str) -> bool:
    """End a session; whether there was one."""
    if find(tables, "sessions", token) is None:
        return False
    tables.execute("DELETE FROM sessions WHERE id = ?", (TokenDigest.of(token).id,))
    return True
