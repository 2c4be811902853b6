"""Actions on people: certificates, roles, one-time links, sessions."""

import secrets
from dataclasses import dataclass

from coordinator.accounts import links, people
from coordinator.accounts.people import Role
from coordinator.actions.devices import require_authority
from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.authority import Authority, Pair
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.person_certificates import as_pkcs12
from protocol.base import name_trouble
from protocol.errors import Reason, Refused


@dataclass(frozen=True, slots=True)
class PersonFile:
    """A person's new certificate, for a browser and for programs. ``not_after``: Unix seconds.

    ``pkcs12`` is encrypted by ``password``; ``pem`` is not encrypted.
    """

    name: str
    role: Role
    pkcs12: bytes
    password: str
    pem: bytes
    not_after: float


def add(settings: CoordinatorSettings, person: Person, name: str, role: Role, days: float) -> PersonFile:
    """Admit a person, and make their certificate.

    Raises:
        Refused: there is such a person, or the name is none.
        Misconfigured: the fleet has no authority.
        Transient: the disk is full.
    """
    _check_name(name)
    require_authority(settings)
    with AuditLog(settings.location) as log, log.acting(person, "person.add", f"{name} as {role}"):
        authority, pair = _issue(settings, name, days)
        with log.change() as tables:
            people.add(tables, name, role, log.now())
            people.certify(tables, name, format(pair.serial, "x"), pair.not_after)
        return _file(name, role, authority, pair)


def renew(settings: CoordinatorSettings, person: Person, name: str, days: float) -> PersonFile:
    """Make another certificate for a person; the one before counts no more. Raises as :func:`add`."""
    require_authority(settings)
    with AuditLog(settings.location) as log, log.acting(person, "person.renew", name):
        authority, pair = _issue(settings, name, days)
        with log.change() as tables:
            role = people.require(tables, name).role
            people.certify(tables, name, format(pair.serial, "x"), pair.not_after)
        return _file(name, role, authority, pair)


def _issue(settings: CoordinatorSettings, name: str, days: float) -> tuple[Authority, Pair]:
    authority = Authority.load(IdentityPaths.of(settings).authority)
    return authority, authority.issue_person(name, days)


def _file(name: str, role: Role, authority: Authority, pair: Pair) -> PersonFile:
    password = secrets.token_urlsafe(12)
    packed = as_pkcs12(pair, authority.ca_pem, f"{name} of {authority.fleet}", password)
    return PersonFile(name, role, packed, password, pair.both_pem, pair.not_after)


def set_role(
    settings: CoordinatorSettings, person: Person, name: str, role: Role, *, seen: Role | None = None
) -> Role:
    """Give a person another role, at once; the one before.

    Raises:
        Refused: there is no such person, it is that role already, or not the one ``seen``.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    with AuditLog(settings.location) as log, log.acting(person, "person.role", f"{name} to {role}") as action:
        with log.change() as tables:
            before = people.set_role(tables, name, role, seen)
        action.outcome = f"done: it was {before.role}"
        return before.role


def revoke(settings: CoordinatorSettings, person: Person, name: str) -> int:
    """Revoke a person: their certificate, sessions and links end at once; how many sessions ended.

    Raises:
        Refused: there is no such person, or they were revoked before.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    with AuditLog(settings.location) as log, log.acting(person, "person.revoke", name) as action:
        with log.change() as tables:
            ended = people.revoke(tables, name, log.now())
        action.outcome = f"done: {ended} sessions ended"
        return ended


def link(
    settings: CoordinatorSettings, person: Person, name: str, role: Role | None = None
) -> tuple[str, Role]:
    """The token of a new one-time link, and the role that it gives.

    Args:
        settings: of the coordinator.
        person: who makes it.
        name: whom it signs in.
        role: theirs; None: of a person who is known, else viewer.

    Raises:
        Refused: the person was revoked or has another role, or too many links wait.
        Transient: the disk is full, or the tables cannot be reached.
    """
    _check_name(name)
    target = name if role is None else f"{name} as {role}"
    with (
        AuditLog(settings.location) as log,
        log.acting(person, "person.link", target),
        log.change() as tables,
    ):
        known = None if people.find(tables, name) is None else people.require(tables, name)
        given = role or ("viewer" if known is None else known.role)
        if known is not None and known.role != given:
            words = f"{name} has the role {known.role}; lichen console person role changes it"
            raise Refused(Reason.WRONG_DEVICE, words)
        return links.make(tables, name, given, log.now()), given


def end_sessions(settings: CoordinatorSettings, person: Person, name: str) -> int:
    """End the sessions and unused links of a name; how many sessions ended.

    Raises:
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    with AuditLog(settings.location) as log, log.acting(person, "session.end", name) as action:
        with log.change() as tables:
            ended = people.end_all(tables, name)
        action.outcome = f"done: {ended} sessions ended"
        return ended


def _check_name(name: str) -> None:
    if words := name_trouble(name):
        raise Refused(Reason.MALFORMED, words)
