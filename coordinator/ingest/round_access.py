"""What the receivers of updates need of the rounds and of the registered devices.

Two implementations of each: in a process that does everything (``RoundDriver`` of :mod:`coordinator.rounds`,
``DeviceRegistry`` of :mod:`coordinator.fleet`), and in one that only accepts updates (``SharedRounds`` and
``KnownDevices`` of :mod:`coordinator.cluster`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from coordinator.round_machine.batch import Key, ReceivedUpdate
from coordinator.round_machine.events import RoundState
from protocol.errors import Reason, Refused
from runtime.concurrency.threads import Threads


class AcceptedUpdates(Protocol):
    """The updates that are accepted already."""

    def has(self, device: str, digest: str) -> bool:
        """Whether exactly this update is known here to be accepted in the open round."""

    async def digests(self, keys: Iterable[Key]) -> dict[Key, str]:
        """The digests that these devices delivered in these rounds."""


class RoundAccess(Protocol):
    """The open round, and the counting of updates."""

    threads: Threads

    @property
    def state(self) -> RoundState:
        """Of the round machine."""

    @property
    def accepted(self) -> AcceptedUpdates:
        """The updates that are accepted already."""

    async def refresh(self, device: str, judged: RoundState) -> bool:
        """Read again what updates are judged by; whether one judged by that state may fare better."""

    async def accept_all(self, group: Sequence[ReceivedUpdate]) -> tuple[Refused | None, ...]:
        """Count updates whose frames are on disk, in one transaction."""

    async def refuse(self, device: str, round_: int, reason: Reason) -> None:
        """An update of this device was refused."""


class Registered(Protocol):
    """The registered devices."""

    def __contains__(self, device: object) -> bool: ...

    def contributed(self, device: str) -> None:
        """Record that an update of it was accepted."""

    def touch(self, device: str) -> None:
        """Record a message of a registered device that is not a state."""
