"""People, links and sessions as the command line and the API show them."""

from pydantic import BaseModel

from coordinator.accounts import people
from coordinator.accounts.sessions import ConsoleSession, look
from coordinator.audit.log import AuditLog
from coordinator.audit.tables import OPERATORS
from coordinator.storage.location import Location


class PersonAnswer(BaseModel):
    """A person with a certificate; times in Unix seconds."""

    name: str
    role: str
    certificate_until: float
    since: float
    revoked: float | None
    note: str


class LinkAnswer(BaseModel):
    """A link that nobody has used."""

    name: str
    role: str
    expires: float


class SignedInAnswer(BaseModel):
    """A session; times in Unix seconds, ``used`` to the minute."""

    name: str
    role: str
    how: str
    began: float
    used: float
    ends: float


class PeopleAnswer(BaseModel):
    """What ``lichen console person ls --format json`` prints."""

    people: tuple[PersonAnswer, ...] = ()
    links: tuple[LinkAnswer, ...] = ()
    sessions: tuple[SignedInAnswer, ...] = ()


def read_people(location: Location) -> PeopleAnswer:
    """All of them, by name.

    Raises:
        Misconfigured: the tables cannot be read.
        Transient: another process holds them, or the server cannot be reached.
    """
    if not location.has(OPERATORS):
        return PeopleAnswer()
    with AuditLog(location) as log:
        now = log.now()
        everybody = log.rows("SELECT * FROM people ORDER BY name")
        waiting = log.rows(
            "SELECT name, role, expires_wall FROM links WHERE used_wall IS NULL AND expires_wall > ?"
            " ORDER BY expires_wall",
            now,
        )
        rows = log.rows("SELECT * FROM sessions ORDER BY name, began_wall")
    signed_in = (look(row, now) for row in rows)
    return PeopleAnswer(
        people=tuple(_person(row, now) for row in everybody),
        links=tuple(
            LinkAnswer(name=one["name"], role=one["role"], expires=one["expires_wall"]) for one in waiting
        ),
        sessions=tuple(_signed_in(one) for one in signed_in if one is not None),
    )


def _person(row: object, now: float) -> PersonAnswer:
    one = people.row_of(row)
    note = "" if one.not_after > now else "the certificate has expired"
    if one.revoked_wall is not None:
        note = "revoked"
    return PersonAnswer(
        name=one.name,
        role=one.role,
        certificate_until=one.not_after,
        since=one.made_wall,
        revoked=one.revoked_wall,
        note=note,
    )


def _signed_in(one: ConsoleSession) -> SignedInAnswer:
    return SignedInAnswer(
        name=one.name,
        role=one.role,
        how=one.how,
        began=one.began_wall,
        used=one.used_wall,
        ends=one.expires_wall,
    )
