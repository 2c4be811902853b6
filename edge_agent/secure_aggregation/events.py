"""State, events and commands of a device in a secure round. All frozen. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from models.privacy.shared_noise import SharedNoise
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority, KeySigner
from protocol.secure_aggregation.keys import Secrets
from protocol.secure_aggregation.messages import (
    DeviceKeys,
    Roster,
    SecureMessage,
    SharesDelivered,
    SharesSent,
    Survivors,
)
from protocol.tasks.folding import SecureAggregation


class MaskingPhase(StrEnum):
    """How far a device is in an attempt; each but the first is on the disk before anything is sent."""

    IDLE = "idle"
    KEYS = "keys_announced"
    SHARES = "shares_sent"
    MASKING = "masking"
    MASKED = "masked_update_sent"
    REVEALED = "shares_revealed"


@dataclass(frozen=True)
class MaskingRules:
    """What does not change during an attempt.

    Attributes:
        device: the own name.
        options: of the task.
        signer: signs with the identity; None: the device has none.
        authority: whose certificates neighbours must have; None: the fleet has no identities.
        noise: of which this device adds a share; None: the task has no ``[privacy]``.
        releases: sums of the task that this device may be in, by its own count; None: any number.
    """

    device: str
    options: SecureAggregation
    signer: KeySigner | None = None
    authority: KeyAuthority | None = None
    noise: SharedNoise | None = None
    releases: int | None = None


@dataclass(frozen=True)
class HeldShares:
    """A neighbour's two shares; at most one of them is ever told.

    Attributes:
        mask: of its mask's private key.
        seed: of its own mask's seed.
    """

    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class MaskingState:
    """A device's state; it holds secrets, and is stored where only the agent reads it.

    Attributes:
        phase: of the attempt.
        attempt: the present one; None if idle.
        secrets: of it.
        roster: the first that came.
        sent: the encrypted shares for the neighbours.
        held: shares of the neighbours that go on, by name.
        masked: SHA-256 of the masked vector that was sent; empty before.
        survivors: the list that was answered.
        opened: base of the last version for which this device has revealed shares; it takes part in no
            other sum from this base.
        ended: digest of the last attempt that this device gave up, hexadecimal: it takes no part in it again.
        counted: base of the last version from which a vector with noise was sent.
        releases: by task, the number of such bases: how often this device's noise was asked for.
    """

    phase: MaskingPhase = MaskingPhase.IDLE
    attempt: Attempt | None = None
    secrets: Secrets | None = None
    roster: Roster | None = None
    sent: SharesSent | None = None
    held: Mapping[str, HeldShares] = field(default_factory=dict)
    masked: str = ""
    survivors: Survivors | None = None
    opened: str = ""
    ended: str = ""
    counted: str = ""
    releases: Mapping[str, int] = field(default_factory=dict)

    @property
    def keys(self) -> Mapping[str, DeviceKeys]:
        """Public keys of the neighbours."""
        return {} if self.roster is None else self.roster.neighbours


IDLE = MaskingState()


@dataclass(frozen=True)
class MaskingInvited:
    """The update of a round is ready, and its offer asks for a secure one.

    ``entropy``: ``Secrets.entropy_bytes`` of the system's randomness, never used before.
    """

    attempt: Attempt
    entropy: bytes = field(repr=False)


@dataclass(frozen=True)
class RosterCame:
    """``nonces``: 12 random bytes for each neighbour."""

    message: Roster
    nonces: bytes = field(repr=False)


@dataclass(frozen=True)
class DeliveryCame:
    """The shares of the neighbours that go on."""

    message: SharesDelivered


@dataclass(frozen=True)
class UpdateMasked:
    """The masked vector is on the disk; ``digest``: its SHA-256."""

    digest: str


@dataclass(frozen=True)
class SurvivorsCame:
    """The coordinator asks for shares."""

    message: Survivors


@dataclass(frozen=True)
class MaskingResumed:
    """The agent was started again, or has its connection back."""


@dataclass(frozen=True)
class AttemptEnded:
    """The round is over, or this attempt of it."""


MaskingEvent = (
    MaskingInvited | RosterCame | DeliveryCame | UpdateMasked | SurvivorsCame | MaskingResumed | AttemptEnded
)


@dataclass(frozen=True)
class Tell:
    """Send a message to the coordinator, after the state is on the disk."""

    message: SecureMessage


@dataclass(frozen=True)
class MaskUpdate:
    """Add masks to the vector, and store it: ``own``, ``added`` and ``subtracted`` are keys of masks.

    ``noise``: the key of this device's noise, and its parameter; None: it adds none.
    """

    own: bytes = field(repr=False)
    added: tuple[bytes, ...] = field(repr=False)
    subtracted: tuple[bytes, ...] = field(repr=False)
    noise: tuple[bytes, int] | None = field(repr=False, default=None)


@dataclass(frozen=True)
class SendMasked:
    """Send the masked vector that is on the disk."""

    digest: str


MaskingCommand = Tell | MaskUpdate | SendMasked
MaskingOutcome = tuple[MaskingState, tuple[MaskingCommand, ...]]
