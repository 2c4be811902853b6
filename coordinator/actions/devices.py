"""Actions on a device: invite, approve, release, revoke, forget, and ask for its state or its log lines.

Who belongs to the fleet is decided for all its tasks: in the tables of the main task, and in its audit log.
What a device reported is each task's own.
"""

from dataclasses import dataclass
from pathlib import Path

from coordinator.actions.fleet_log import fleet_log, task_orders
from coordinator.admission.operator_orders import SEND_LOGS, SEND_STATE, request
from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.diagnosis import device_logs
from coordinator.diagnosis.device_logs import LogAnswer
from coordinator.fleet.device_removal import ask, forget_in
from coordinator.identity.decisions import Standing
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.store import IdentityStore
from coordinator.status.device_list import seen_devices
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from protocol.errors import Misconfigured, Reason, Refused, Transient


@dataclass(frozen=True, slots=True)
class Invited:
    """A new invite; ``word`` is a secret. ``ends``: Unix seconds."""

    word: str
    url: str
    ca_sha256: str
    ends: float


@dataclass(frozen=True, slots=True)
class RevokedDevice:
    """``certificates``: how many were revoked; ``folder``: of the broker's files."""

    certificates: int
    broker_reloaded: bool
    folder: Path


def invite(settings: CoordinatorSettings, person: Person, name: str | None, lasts_s: float) -> Invited:
    """Make an invite for a device; None: for any new name, which then waits for approval.

    Raises:
        Refused: too many invites are open.
        Misconfigured: there is no authority, or its certificates do not name this host.
        Transient: the disk is full.
    """
    require_authority(settings)
    with (
        AuditLog(settings.main.location) as log,
        log.acting(person, "device.invite", name or "any new name"),
        EnrolmentAuthority(settings) as desk,
    ):
        made = desk.invite(name, lasts_s)
        return Invited(made.encode(), desk.url, made.ca_sha256, desk.now() + lasts_s)


def approve(
    settings: CoordinatorSettings, person: Person, name: str, *, seen: Standing | None = None
) -> Standing:
    """Admit a pending device, or end a device's quarantine; its status before.

    Raises:
        Refused: there is no such device, it was revoked, or its status is another than the one ``seen``.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    with AuditLog(settings.main.location) as log, log.acting(person, "device.approve", name) as action:
        was = _approved(settings, name, seen)
        action.outcome = f"done: it was {was}"
        return was


def release(settings: CoordinatorSettings, person: Person, name: str) -> None:
    """End a device's quarantine, and nothing else: a device that waits for approval is not admitted.

    Raises:
        Refused: it is not in quarantine, is not known, waits for approval, or was revoked.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    with fleet_log(settings) as log, log.acting(person, "device.release", name):
        known = seen_devices(settings.location).get(name)
        if known is None or known.quarantine is None:
            raise Refused(Reason.WRONG_ROUND, f"{name} is not in quarantine")
        with IdentityStore(settings.main.location) as book:
            book.refresh()
            released = book.released_at(name)
            if released is not None and released >= known.quarantine.since:
                raise Refused(Reason.WRONG_ROUND, f"{name} was released from this quarantine already")
            if book.standing(name) == "pending":
                raise Refused(Reason.NOT_SELECTED, f"{name} waits for approval; approve it instead")
            book.approve(name, unknown=True)


def _approved(settings: CoordinatorSettings, name: str, seen: Standing | None) -> Standing:
    reported = name in seen_devices(settings.location)
    if not reported and not settings.main.location.has(IDENTITIES):
        raise Refused(Reason.UNKNOWN_DEVICE, f"no device {name}; lichen device ls shows those there are")
    with IdentityStore(settings.main.location) as book:
        return book.approve(name, unknown=reported, seen=seen)


def revoke(
    settings: CoordinatorSettings,
    person: Person,
    name: str,
    *,
    unknown: bool = False,
    seen: Standing | None = None,
) -> RevokedDevice:
    """Revoke a device's certificates, and make the broker refuse it. ``unknown``: also a name nobody knows.

    Raises:
        Refused: there is no such device, or its status is another than the one ``seen``.
        Misconfigured, Transient: nothing was changed; or the device is revoked, but the broker does not know
            it yet: the message says which.
    """
    require_authority(settings)
    with (
        AuditLog(settings.main.location) as log,
        log.acting(person, "device.revoke", name) as action,
        EnrolmentAuthority(settings) as desk,
    ):
        taken = desk.book.revoke(name, unknown=unknown, seen=seen)
        try:
            published = desk.publish(force=True)
        except (Transient, Misconfigured) as error:
            kind = Transient if isinstance(error, Transient) else Misconfigured
            raise kind(f"{name} is revoked, and the coordinator refuses it; but {error}") from None
        action.outcome = f"done: {taken} certificates revoked"
        return RevokedDevice(taken, published.reloaded, desk.places.broker.folder)


def forget(settings: CoordinatorSettings, person: Person, name: str, *, force: bool = False) -> bool:
    """Remove a device's reports; whether a running coordinator does it, within seconds.

    Raises:
        Refused: the device never reported.
        Transient: it is online and would report again; or the disk is full.
    """
    with fleet_log(settings) as log, log.acting(person, "device.forget", name):
        known = seen_devices(settings.location)
        if name not in known:
            raise Refused(Reason.UNKNOWN_DEVICE, f"no device {name} has said anything here")
        if known[name].status == "online" and not force:
            raise Transient(f"{name} is online and would report again: stop its agent first, or use --force")
        with settings.location.database(read_only=True) as store:
            runs = bool(store.is_served())
        if runs:
            ask(settings.state_dir, name, force=force)
        else:
            with settings.location.database() as store:
                forget_in(store, name)
        device_logs.forget(settings.location, name)
        return runs


def ask_state(settings: CoordinatorSettings, person: Person, name: str) -> None:
    """Have the running coordinator ask a device for its state; it does so within seconds.

    Raises:
        Refused: the device never reported.
        Transient: no coordinator runs, the device is offline, or the disk is full.
    """
    with fleet_log(settings) as log, log.acting(person, "device.ask_state", name):
        _require_online(settings, name)
        with task_orders(settings, log) as orders:
            request(orders, name, SEND_STATE)


def ask_logs(settings: CoordinatorSettings, person: Person, name: str) -> float:
    """Have the running coordinator ask a device for its last log lines; it does so within seconds.

    The device answers if its owner permits it; :func:`last_logs` reads the answer.

    Returns:
        Unix seconds of the question: an answer that came later is the one to it.

    Raises:
        Refused: the device never reported, or was asked a moment ago.
        Transient: no coordinator runs, the device is offline, or the disk is full.
    """
    with fleet_log(settings) as log, log.acting(person, "device.ask_logs", name):
        _require_online(settings, name)
        asked = log.now()
        device_logs.ask(settings.location, name, asked)
        with task_orders(settings, log) as orders:
            request(orders, name, SEND_LOGS)
        return asked


def last_logs(settings: CoordinatorSettings, name: str, wall: float) -> LogAnswer | None:
    """The newest log lines of a device that an operator asked for; None if nobody asked within a day.

    Args:
        settings: of the coordinator.
        name: of the device.
        wall: the present time, Unix seconds.

    Raises:
        Misconfigured, Transient: they cannot be read.
    """
    return device_logs.read(settings.location, name, wall)


def _require_online(settings: CoordinatorSettings, name: str) -> None:
    """Raises Refused if the device never reported, Transient if nothing reaches it."""
    known = seen_devices(settings.location).get(name)
    if known is None:
        raise Refused(Reason.UNKNOWN_DEVICE, f"no device {name} has said anything here")
    if known.status != "online":
        raise Transient(f"{name} is {known.status}: it cannot answer")
    require_running(settings)


def require_running(settings: CoordinatorSettings) -> None:
    """Check that a coordinator runs, as far as that can be seen.

    Raises:
        Transient: none runs.
    """
    with settings.location.database(read_only=True) as store:
        if store.is_served() is False:
            raise Transient("no coordinator runs, so nothing reaches the devices: start it first")


def require_authority(settings: CoordinatorSettings) -> None:
    """Check that there is an authority.

    Raises:
        Misconfigured: there is none.
    """
    if settings.identity.enabled is False:
        raise Misconfigured("identity.enabled is false: this fleet has no certificates of its own")
    places = IdentityPaths.of(settings)
    if not places.authority.is_dir():
        raise Misconfigured(
            f"{places.authority} is not there; make the fleet's authority with: lichen coordinator init"
        )
