"""People with a certificate: each function runs in one transaction of the tables of operators."""

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from coordinator.storage.engines.shared_tables import Statements
from protocol.errors import Reason, Refused

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
MAX_PEOPLE: Final = 1000


@dataclass(frozen=True, slots=True)
class PersonRow:
    """One person; ``serial``: hexadecimal, of the certificate that counts; times in Unix seconds."""

    name: str
    role: Role
    serial: str
    not_after: float
    made_wall: float
    revoked_wall: float | None


def as_role(word: Any) -> Role:
    """A role of a row; a word that this release does not know may only look."""
    return cast("Role", word) if word in ROLES else "viewer"


def row_of(row: Any) -> PersonRow:
    """A row as a person."""
    return PersonRow(
        str(row["name"]),
        as_role(row["role"]),
        str(row["serial"]),
        float(row["not_after"]),
        float(row["made_wall"]),
        row["revoked_wall"],
    )


def find(tables: Statements, name: str) -> PersonRow | None:
    """A person by name, also a revoked one."""
    row = tables.execute("SELECT * FROM people WHERE name = ?", (name,)).fetchone()
    return None if row is None else row_of(row)


def require(tables: Statements, name: str) -> PersonRow:
    """A person who was not revoked.

    Raises:
        Refused: UNKNOWN_DEVICE: there is none of that name; REVOKED.
    """
    person = find(tables, name)
    if person is None:
        raise Refused(Reason.UNKNOWN_DEVICE, f"no person {name}; lichen console person ls shows all")
    if person.revoked_wall is not None:
        raise Refused(Reason.REVOKED, f"{name} was revoked; lichen console person add admits {name} again")
    return person


def add(tables: Statements, name: str, role: Role, now: float) -> None:
    """Add a person: a new name, or one that was revoked. Sessions and links of that name get the role, too.

    Raises:
        Refused: DUPLICATE: there is such a person; FULL.
    """
    known = find(tables, name)
    if known is not None and known.revoked_wall is None:
        words = (
            f"{name} is known already, as {known.role}; person renew makes another certificate, person role"
        )
        raise Refused(Reason.DUPLICATE, f"{words} changes the role")
    count = tables.execute("SELECT count(*) FROM people").fetchone()[0]
    if known is None and count >= MAX_PEOPLE:
        raise Refused(Reason.FULL, f"there are {count} people already")
    values = (name, role, "", 0.0, now, None)
    tables.execute(
        "INSERT INTO people VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET role = excluded.role,"
        " serial = excluded.serial, not_after = excluded.not_after, made_wall = excluded.made_wall,"
        " revoked_wall = NULL",
        values,
    )
    _give_role(tables, name, role)


def certify(tables: Statements, name: str, serial: str, not_after: float) -> None:
    """Let a certificate count, and none before it. Raises as :func:`require`."""
    require(tables, name)
    words = "UPDATE people SET serial = ?, not_after = ? WHERE name = ?"
    tables.execute(words, (serial, not_after, name))


def set_role(tables: Statements, name: str, role: Role, seen: Role | None) -> PersonRow:
    """Give a person another role, in their sessions and unused links too; the person before.

    Raises:
        Refused: as :func:`require`; DUPLICATE: it is that role already; WRONG_ROUND: not the one ``seen``.
    """
    before = require(tables, name)
    if seen is not None and before.role != seen:
        words = f"{name} has the role {before.role} now, and no more {seen}: somebody acted before"
        raise Refused(Reason.WRONG_ROUND, words)
    if before.role == role:
        raise Refused(Reason.DUPLICATE, f"{name} has the role {role} already")
    tables.execute("UPDATE people SET role = ? WHERE name = ?", (role, name))
    _give_role(tables, name, role)
    return before


def _give_role(tables: Statements, name: str, role: Role) -> None:
    """To the sessions and unused links of a name."""
    tables.execute("UPDATE sessions SET role = ? WHERE name = ?", (role, name))
    tables.execute("UPDATE links SET role = ? WHERE name = ? AND used_wall IS NULL", (role, name))


def revoke(tables: Statements, name: str, now: float) -> int:
    """Revoke a person's certificate, end their sessions, and remove their links; how many sessions ended.

    Raises:
        Refused: as :func:`require`.
    """
    require(tables, name)
    tables.execute("UPDATE people SET revoked_wall = ? WHERE name = ?", (now, name))
    return end_all(tables, name)


def end_all(tables: Statements, name: str) -> int:
    """End the sessions of a name, and remove its unused links; how many sessions ended."""
    tables.execute("DELETE FROM links WHERE name = ? AND used_wall IS NULL", (name,))
    return tables.execute("DELETE FROM sessions WHERE name = ?", (name,)).rowcount
