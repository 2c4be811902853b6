"""State, events and commands of one attempt of a secure round. All frozen. Pure.

Messages of devices are not in the state: the caller stores them (:mod:`coordinator.secure_aggregation.book`),
and the state says whose are there. Times are seconds on the driver's time line.
"""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from coordinator.round_machine.device_sets import NONE, DeviceSet
from models.privacy.shared_noise import SharedNoise
from protocol.base import Frozen
from protocol.tasks.folding import SecureAggregation


class SecurePhase(StrEnum):
    """What the coordinator waits for; each but the last two ends early if nothing is missing."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked_updates"
    UNMASK = "unmask"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class SecureRules:
    """What does not change during an attempt.

    Attributes:
        options: of the task.
        salt: of the attempt's graph.
        stage_s: seconds that each stage but the first lasts at most.
        masked_s: the same of the stage in which masked updates come.
        noise: that devices add, of a task with ``[privacy]``.
    """

    options: SecureAggregation
    salt: bytes
    stage_s: float = 60.0
    masked_s: float = 600.0
    noise: SharedNoise | None = None

    @property
    def capacity(self) -> int:
        """How many devices' numbers fit the ring."""
        return self.options.capacity if self.noise is None else self.noise.capacity

    def room_trouble(self, devices: int) -> str:
        """Why so many devices do not fit the ring, in words; empty if they do."""
        return (self.options if self.noise is None else self.noise).room_trouble(devices)


class SecureState(Frozen):
    """One attempt."""

    phase: SecurePhase = SecurePhase.KEYS
    expected: int = 0
    """Number of devices that were asked."""
    closes: float = 0.0
    """When the stage ends."""
    joined: DeviceSet = NONE
    """Devices with keys; the graph is over these."""
    shared: DeviceSet = NONE
    """Of them, those with shares."""
    going: DeviceSet = NONE
    """Of these, those that were told to mask; fixed when the stage of shares ends."""
    delivered: DeviceSet = NONE
    """Of these, those with a masked vector."""
    survivors: DeviceSet = NONE
    """Whose vectors are in the sum; fixed before the first share is asked for."""
    revealed: DeviceSet = NONE
    """Devices that have answered."""
    why: str = ""
    """Of a failure, in words."""
    graph: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude=True, repr=False)
    """The neighbours of each device, once the stage of keys is over; it follows from ``joined``."""


@dataclass(frozen=True)
class KeysCame:
    """Keys of a device, checked."""

    device: str


@dataclass(frozen=True)
class SharesCame:
    """Encrypted shares for all its neighbours."""

    device: str


@dataclass(frozen=True)
class MaskedCame:
    """A masked vector of the right size."""

    device: str


@dataclass(frozen=True)
class RevealCame:
    """Shares that the device was asked for."""

    device: str


@dataclass(frozen=True)
class StageTick:
    """Time goes on."""


@dataclass(frozen=True)
class SecureResumed:
    """The coordinator was started again: what was told last is told again."""


@dataclass(frozen=True)
class SumSpoilt:
    """The answers give no sum of sound updates: a device lied; ``why``: in words."""

    why: str


SecureEvent = KeysCame | SharesCame | MaskedCame | RevealCame | StageTick | SecureResumed | SumSpoilt


@dataclass(frozen=True)
class SendRosters:
    """Send each of ``joined`` its neighbours' keys."""


@dataclass(frozen=True)
class SendShares:
    """Send each of ``going`` the shares that are for it."""


@dataclass(frozen=True)
class AskForShares:
    """Tell each of ``going`` which of its neighbours are survivors."""


@dataclass(frozen=True)
class OpenSum:
    """Remove the masks, and fold the sum."""


SecureCommand = SendRosters | SendShares | AskForShares | OpenSum
SecureOutcome = tuple[SecureState, tuple[SecureCommand, ...]]
