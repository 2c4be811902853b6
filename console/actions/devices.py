"""Devices: ask for the state, release, approve, revoke, forget, invite."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from console.actions.definitions import ActionCall, ActionForm, ConsoleAction, FormInput, NoBody
from console.ports import Role
from coordinator.actions import devices
from coordinator.actions.answers import (
    DeviceApproved,
    DeviceAsked,
    DeviceForgotten,
    DeviceInvited,
    DeviceLogsAsked,
    DeviceReleased,
    DeviceRevoked,
)
from protocol.base import Frozen, Name

_HOUR_S = 3600.0


class SeenDevice(Frozen):
    """``status``: what the person saw; another one is refused."""

    status: Literal["unknown", "pending", "active", "revoked"] | None = None


class NewInvite(Frozen):
    """``device``: None: for any new name, which then waits for approval. ``lasts_s``: seconds."""

    device: Name | None = None
    lasts_s: Annotated[float, Field(ge=60, le=30 * 24 * _HOUR_S)] = 24 * _HOUR_S


def _ask(call: ActionCall) -> DeviceAsked:
    devices.ask_state(call.settings, call.person, call.path["device"])
    return DeviceAsked(device=call.path["device"])


def _ask_logs(call: ActionCall) -> DeviceLogsAsked:
    name = call.path["device"]
    return DeviceLogsAsked(device=name, asked=devices.ask_logs(call.settings, call.person, name))


def _release(call: ActionCall) -> DeviceReleased:
    devices.release(call.settings, call.person, call.path["device"])
    return DeviceReleased(device=call.path["device"])


def _approve(call: ActionCall) -> DeviceApproved:
    name = call.path["device"]
    return DeviceApproved.of(name, devices.approve(call.settings, call.person, name, seen=call.body.status))


def _revoke(call: ActionCall) -> DeviceRevoked:
    name = call.path["device"]
    return DeviceRevoked.of(name, devices.revoke(call.settings, call.person, name, seen=call.body.status))


def _forget(call: ActionCall) -> DeviceForgotten:
    name = call.path["device"]
    return DeviceForgotten.of(name, runs=devices.forget(call.settings, call.person, name))


def _invite(call: ActionCall) -> DeviceInvited:
    body: NewInvite = call.body
    return DeviceInvited.of(
        body.device, devices.invite(call.settings, call.person, body.device, body.lasts_s)
    )


_AT = "/devices/{device}"
ASK_STATE = ConsoleAction(
    "device.ask_state",
    f"{_AT}/ask-state",
    Role.OPERATOR,
    "Ask a device for its state",
    NoBody,
    DeviceAsked,
    _ask,
)
ASK_LOGS = ConsoleAction(
    "device.ask_logs",
    f"{_AT}/ask-logs",
    Role.OPERATOR,
    "Ask a device for its last log lines",
    NoBody,
    DeviceLogsAsked,
    _ask_logs,
)
RELEASE = ConsoleAction(
    "device.release", f"{_AT}/release", Role.OPERATOR, "End a quarantine", NoBody, DeviceReleased, _release
)
APPROVE = ConsoleAction(
    "device.approve",
    f"{_AT}/approve",
    Role.ADMIN,
    "Admit a device that waits",
    SeenDevice,
    DeviceApproved,
    _approve,
    of_fleet=True,
)
REVOKE = ConsoleAction(
    "device.revoke",
    f"{_AT}/revoke",
    Role.ADMIN,
    "Revoke a device",
    SeenDevice,
    DeviceRevoked,
    _revoke,
    of_fleet=True,
)
FORGET = ConsoleAction(
    "device.forget",
    f"{_AT}/forget",
    Role.ADMIN,
    "Remove what a device reported",
    NoBody,
    DeviceForgotten,
    _forget,
)
INVITE = ConsoleAction(
    "device.invite",
    "/invites",
    Role.ADMIN,
    "Make an invite for a device",
    NewInvite,
    DeviceInvited,
    _invite,
    of_fleet=True,
)
ACTIONS = (ASK_STATE, ASK_LOGS, RELEASE, APPROVE, REVOKE, FORGET, INVITE)


def forms_of_device(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``device``: ``{"device": NAME}``, and ``status``, ``quarantined`` if the page knows."""
    name = str(subject["device"])
    ask = ActionForm(
        ASK_STATE, "Ask for its state", f"The coordinator asks {name} for its state.", {"device": name}
    )
    forget = ActionForm(
        FORGET,
        "Forget",
        f"What {name} reported is removed, and its place is free. What it delivered stays in the history; "
        "whether it may come back does not change.",
        {"device": name},
        danger=True,
    )
    release = _release_form(name) if subject.get("quarantined", True) else []
    return [ask, *release, *forms_of_enrolment(subject), forget]


def forms_of_log(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``log``: ``{"device": NAME}``."""
    name = str(subject["device"])
    words = f"The coordinator asks {name} for its last log lines. It sends them if its owner permits it."
    return [ActionForm(ASK_LOGS, "Ask for its log", words, {"device": name})]


def forms_of_refusals(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``refusals``: ``{"device": NAME}``."""
    return _release_form(str(subject["device"]))


def _release_form(name: str) -> list[ActionForm]:
    words = f"The quarantine of {name} ends now: the coordinator accepts its updates again."
    return [ActionForm(RELEASE, "Release", words, {"device": name})]


def forms_of_enrolment(subject: Mapping[str, Any]) -> list[ActionForm]:
    """For the place ``enrolment``: ``{"device": NAME, "status": WORD}``."""
    name, status = str(subject["device"]), subject.get("status")
    at: Mapping[str, str] = {"device": name}
    seen: Mapping[str, str] = {} if status is None else {"status": str(status)}
    words = f"{name} is admitted. Compare the key that this page shows with the one that the device shows."
    approve = ActionForm(APPROVE, "Approve", f"{words} It gets its certificate when it asks next.", at, seen)
    revoke = ActionForm(
        REVOKE,
        "Revoke",
        f"The certificates of {name} are revoked for good: broker and coordinator refuse it. To admit it "
        "again, it needs a new invite.",
        at,
        seen,
        danger=True,
    )
    again = ActionForm(
        INVITE,
        "Invite again",
        f"An invite for {name} is made, which works once, for 24 hours. It is a secret.",
        {},
        {"device": name},
    )
    return {"pending": [approve, revoke], "revoked": [again], "unknown": []}.get(str(status), [revoke])


def forms_of_fleet() -> list[ActionForm]:
    """For the place ``fleet``."""
    inputs = (
        FormInput("device", "Name of the device", hint="empty: any new name, which waits for approval"),
    )
    words = "An invite is made, which works once, for 24 hours. It is a secret: give it to the device alone."
    return [ActionForm(INVITE, "Invite a device", words, {}, {}, inputs)]
