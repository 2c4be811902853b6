"""Answers to actions: what the commands print as JSON and the console answers, and the same in words."""

import datetime as dt
from typing import Any

from pydantic import BaseModel

from coordinator.actions.devices import Invited, RevokedDevice
from coordinator.actions.rollouts import Created
from coordinator.admission.operator_orders import RoundOrder
from coordinator.identity.decisions import Standing
from coordinator.rollout.model import RolloutState


class ActionAnswer(BaseModel):
    """What was done."""

    @property
    def words(self) -> str:
        """For a person."""
        raise NotImplementedError


class RolloutOrdered(ActionAnswer):
    """A rollout after an order."""

    rollout: int
    phase: str
    _next: str = ""

    @classmethod
    def of(cls, after: RolloutState) -> "RolloutOrdered":
        """From the state after it."""
        made = cls(rollout=after.number, phase=after.phase.value)
        if after.open is None and after.waiting is not None:
            made._next = f"; {after.waiting.release.words} waited, and begins next"
        return made

    @property
    def words(self) -> str:
        """See the base."""
        return f"rollout {self.rollout} is {self.phase}{self._next}"


class RolloutCreated(ActionAnswer):
    """A rollout that began."""

    rollout: int
    version: int
    bundles: list[str]
    plan: dict[str, Any]
    warnings: list[str]
    _words: str = ""

    @classmethod
    def of(cls, made: Created) -> "RolloutCreated":
        """From what was made."""
        answer = cls(
            rollout=made.number,
            version=made.version,
            bundles=list(made.digests),
            plan=made.plan.model_dump(mode="json"),
            warnings=list(made.warnings),
        )
        answer._words = made.words
        return answer

    @property
    def words(self) -> str:
        """See the base."""
        return self._words


class RoundsOrdered(ActionAnswer):
    """What was ordered about the rounds: ``held``, ``ended``, ``open``; ``before``: empty if they went on."""

    rounds: str
    before: str

    @classmethod
    def of(cls, state: str, before: RoundOrder) -> "RoundsOrdered":
        """From the order."""
        return cls(rounds=state, before=before.state)

    @property
    def words(self) -> str:
        """See the base."""
        if self.rounds == "held":
            return "no further round is opened; lichen round resume ends that"
        if self.rounds == "ended":
            return "the rounds end with the version that is being made, or the newest"
        then = "when the coordinator is started again" if self.before == "ended" else "within seconds"
        return f"rounds are opened again {then}"


class DeviceApproved(ActionAnswer):
    """A device that was approved. ``status``: unknown if it has no certificate here."""

    device: str
    was: str
    status: str

    @classmethod
    def of(cls, device: str, was: Standing) -> "DeviceApproved":
        """From its status before."""
        return cls(device=device, was=was, status=was if was == "unknown" else "active")

    @property
    def words(self) -> str:
        """See the base."""
        over = "whatever held it back before now (a quarantine) is over"
        return {
            "pending": f"{self.device} is approved; it gets its certificate when it asks next",
            "active": f"{self.device} is in; {over}",
        }.get(self.was, f"{self.device} has no certificate here; {over}")


class DeviceRevoked(ActionAnswer):
    """A device that was revoked."""

    device: str
    certificates: int
    broker_reloaded: bool
    _folder: str = ""

    @classmethod
    def of(cls, device: str, done: RevokedDevice) -> "DeviceRevoked":
        """From what was done."""
        made = cls(device=device, certificates=done.certificates, broker_reloaded=done.broker_reloaded)
        made._folder = str(done.folder)
        return made

    @property
    def words(self) -> str:
        """See the base."""
        count = f"{self.certificates} certificate{'' if self.certificates == 1 else 's'} taken back"
        words = f"{self.device} is revoked ({count})"
        if self.broker_reloaded:
            return f"{words}; the broker acts on it"
        return (
            f"{words}.\nThe broker must read {self._folder} again NOW: systemctl reload mosquitto (or kill "
            "-HUP its pid); [identity] reload_command does it for you"
        )


class DeviceForgotten(ActionAnswer):
    """A device whose reports were removed; ``by``: coordinator, within seconds, or command."""

    device: str
    by: str

    @classmethod
    def of(cls, device: str, *, runs: bool) -> "DeviceForgotten":
        """``runs``: whether a running coordinator does it."""
        return cls(device=device, by="coordinator" if runs else "command")

    @property
    def words(self) -> str:
        """See the base."""
        then = " by the running coordinator within seconds" if self.by == "coordinator" else ""
        return f"{self.device} is forgotten{then}"


class DeviceReleased(ActionAnswer):
    """A device whose quarantine is over."""

    device: str
    released: bool = True

    @property
    def words(self) -> str:
        """See the base."""
        return f"the quarantine of {self.device} is over"


class DeviceAsked(ActionAnswer):
    """A device that is asked for its state."""

    device: str
    asked: bool = True

    @property
    def words(self) -> str:
        """See the base."""
        return f"{self.device} is asked for its state within seconds"


class DeviceLogsAsked(ActionAnswer):
    """A device that is asked for its last log lines. ``asked``: Unix seconds; later answers are to this."""

    device: str
    asked: float

    @property
    def words(self) -> str:
        """See the base."""
        return f"{self.device} is asked for its log lines within seconds; it answers if its owner permits it"


class DeviceInvited(ActionAnswer):
    """An invite; ``invite`` is a secret. ``device``: None: for any new name. ``expires``: ISO 8601."""

    invite: str
    device: str | None
    url: str
    expires: str
    ca_sha256: str

    @classmethod
    def of(cls, device: str | None, made: Invited) -> "DeviceInvited":
        """From what was made."""
        ends = dt.datetime.fromtimestamp(made.ends, dt.UTC).isoformat(timespec="seconds")
        return cls(invite=made.word, device=device, url=made.url, expires=ends, ca_sha256=made.ca_sha256)

    @property
    def words(self) -> str:
        """See the base."""
        whom = self.device or "any new device; it says its name, and waits for approval"
        return f"It works once, until {self.expires}, for {whom}."


class PersonChanged(ActionAnswer):
    """A person with another role."""

    person: str
    role: str
    before: str

    @property
    def words(self) -> str:
        """See the base."""
        return f"{self.person} is {self.role} now; before: {self.before}"


class PersonRevoked(ActionAnswer):
    """A person who was revoked."""

    person: str
    sessions_ended: int

    @property
    def words(self) -> str:
        """See the base."""
        return f"{self.person} is revoked; sessions ended: {self.sessions_ended}"


class PersonSignedOut(ActionAnswer):
    """A person whose sessions were ended."""

    person: str
    sessions_ended: int

    @property
    def words(self) -> str:
        """See the base."""
        return f"sessions of {self.person} that ended: {self.sessions_ended}"


class LinkMade(ActionAnswer):
    """A one-time link; ``url`` is a secret."""

    url: str
    person: str
    role: str

    @property
    def words(self) -> str:
        """See the base."""
        return f"It works once, for 15 minutes, and signs {self.person} in as {self.role}."
