"""People: links, roles, sessions, revocation; and their page."""

from typing import Literal

from console.access.listing import PeopleAnswer, PersonAnswer, SignedInAnswer
from console.actions.definitions import ActionCall, ActionForm, ConsoleAction, FormInput, NoBody
from console.ports import Role
from coordinator.accounts.people import ROLES
from coordinator.accounts.people import Role as RoleWord
from coordinator.actions import people
from coordinator.actions.answers import LinkMade, PersonChanged, PersonRevoked, PersonSignedOut
from protocol.base import Frozen, Name


class NewLink(Frozen):
    """``role``: None: that of a person who is known, else viewer."""

    name: Name
    role: RoleWord | None = None


class NewRole(Frozen):
    """``seen``: the role that the person had; another one is refused."""

    role: RoleWord
    seen: Literal["viewer", "operator", "admin"] | None = None


def _link(call: ActionCall) -> LinkMade:
    token, role = people.link(call.settings, call.person, call.body.name, call.body.role)
    return LinkMade(url=f"{call.address}/sign-in?token={token}", person=call.body.name, role=role)


def _role(call: ActionCall) -> PersonChanged:
    name, body = call.path["person"], call.body
    before = people.set_role(call.settings, call.person, name, body.role, seen=body.seen)
    return PersonChanged(person=name, role=body.role, before=before)


def _revoke(call: ActionCall) -> PersonRevoked:
    name = call.path["person"]
    return PersonRevoked(person=name, sessions_ended=people.revoke(call.settings, call.person, name))


def _sign_out(call: ActionCall) -> PersonSignedOut:
    name = call.path["person"]
    return PersonSignedOut(person=name, sessions_ended=people.end_sessions(call.settings, call.person, name))


_AT = "/people/{person}"
LINK = ConsoleAction(
    "person.link", "/links", Role.ADMIN, "Make a one-time link", NewLink, LinkMade, _link, of_fleet=True
)
ROLE = ConsoleAction(
    "person.role",
    f"{_AT}/role",
    Role.ADMIN,
    "Give a person another role",
    NewRole,
    PersonChanged,
    _role,
    of_fleet=True,
)
REVOKE = ConsoleAction(
    "person.revoke",
    f"{_AT}/revoke",
    Role.ADMIN,
    "Revoke a person",
    NoBody,
    PersonRevoked,
    _revoke,
    of_fleet=True,
)
SIGN_OUT = ConsoleAction(
    "session.end",
    f"{_AT}/sign-out",
    Role.ADMIN,
    "End a person's sessions",
    NoBody,
    PersonSignedOut,
    _sign_out,
    of_fleet=True,
)
ACTIONS = (LINK, ROLE, REVOKE, SIGN_OUT)


def forms_of_people() -> list[ActionForm]:
    """For the head of the page."""
    inputs = (
        FormInput("name", "Name", required=True),
        FormInput("role", "Role", choices=ROLES, hint="a person who is known keeps theirs"),
    )
    words = "A link is made that signs this person in: it works once, for 15 minutes. It is a secret."
    return [ActionForm(LINK, "Make a link", words, {}, {}, inputs)]


def forms_of_person(person: PersonAnswer) -> list[ActionForm]:
    """For a person who was not revoked."""
    if person.revoked is not None:
        return []
    at = {"person": person.name}
    inputs = (FormInput("role", "Role", choices=ROLES, value=person.role),)
    words = f"{person.name}, who is {person.role}, gets another role, at once and in open sessions too."
    role = ActionForm(ROLE, "Change the role", words, at, {"seen": person.role}, inputs)
    words = (
        f"The certificate of {person.name} does not count any more, and all sessions end at once. "
        f"lichen console person add admits {person.name} again."
    )
    return [role, ActionForm(REVOKE, "Revoke", words, at, danger=True)]


def form_of_session(session: SignedInAnswer) -> list[ActionForm]:
    """For a person who is signed in."""
    words = f"All sessions of {session.name} end at once, and unused links are removed."
    return [ActionForm(SIGN_OUT, "Sign out", words, {"person": session.name})]


__all__ = ["ACTIONS", "PeopleAnswer", "form_of_session", "forms_of_people", "forms_of_person"]
