"""Devices that report why they do not run their bundle yet (``State.hindered``), as text.

It is shown and not stored: a rollout counts only reports on a trial.
"""

from collections.abc import Callable, Collection
from typing import Final

from coordinator.fleet.device_registry import Device, DeviceRegistry
from coordinator.rollout.model import RolloutState
from protocol.rollout import Hindrance
from runtime.text import first_few, one_line
from runtime.waits import Wait

_MAX_NAMES: Final = 5


def in_rollout(course: RolloutState, get: Callable[[str], Device | None]) -> dict[str, str]:
    """Online devices of the open rollout that are not done with the candidate, and their reasons.

    Args:
        course: the decisions.
        get: the entry of a device.
    """
    rollout, found = course.open, {}
    if rollout is None:
        return {}
    for name, member in rollout.members.items():
        if member.barred or member.phase not in {"waiting", "trial"}:
            continue
        if why := hindrance_of(get(name), rollout.release.digests):
            found[name] = why
    return found


def hindrance_of(device: Device | None, bundles: Collection[str]) -> str:
    """Why an online device cannot run one of these bundles, or any; empty if it says nothing."""
    said = _said(device)
    return one_line(said.why) if said is not None and said.bundle in {None, *bundles} else ""


def elsewhere(roster: DeviceRegistry, course: RolloutState, barred: Collection[str]) -> list[Wait]:
    """The same of devices that are in no open rollout, as one wait; nothing if there is none.

    Args:
        roster: the devices.
        course: the decisions.
        barred: devices that are denied.
    """
    members = () if course.open is None else course.open.members
    found = []
    for name in roster.online():
        said = _said(roster.get(name))
        # Without a bundle it runs no model at all, perhaps on purpose.
        if said is not None and said.bundle is not None and name not in members and name not in barred:
            found.append(f"{name} (version {said.version}: {one_line(said.why)})")
    if not found:
        return []
    words = f"devices that cannot run their bundle yet: {first_few(found, _MAX_NAMES)}"
    return [Wait("models", words, None, None, "until this is repaired on the devices; they try again")]


def ahead(
    roster: DeviceRegistry, course: RolloutState, newest: int | None, barred: Collection[str]
) -> list[Wait]:
    """Devices that run a later version than this coordinator made: its state was lost, or is an old copy.

    Args:
        roster: the devices.
        course: with decisions of its own (``serial``) a coordinator brings devices back.
        newest: the last exported version; None: there is none.
        barred: devices that are denied.
    """
    if newest is None or course.serial:
        return []
    found = []
    for name in roster.online():
        device = roster.get(name)
        trial = None if device is None else device.state.trial
        if trial is not None and trial.phase == "committed" and trial.version > newest and name not in barred:
            found.append((trial.version, name))
    if not found:
        return []
    highest = max(version for version, _ in found)
    names = [f"{name} (version {version})" for version, name in sorted(found, reverse=True)]
    words = (
        f"devices run a later version than this coordinator ever exported (its newest is {newest}): "
        f"{first_few(names, _MAX_NAMES)}; they refuse its versions. Its state was lost, or an older one "
        "restored"
    )
    then = f"until version {highest}, or at once with rollout.mode = manual and lichen rollout create"
    return [Wait("versions", words, None, None, then)]


def _said(device: Device | None) -> Hindrance | None:
    """Its last report; of an offline device it may be outdated."""
    return device.state.hindered if device is not None and device.online else None
