"""The messages of one attempt: checked when they come, and put together for their receivers. Pure.

Shares are encrypted for their receivers, vectors are masked: nothing in here tells more than who takes part,
until enough devices have answered for the same survivors.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.secure_aggregation.events import SecureRules, SecureState
from coordinator.secure_aggregation.transitions import threshold_in
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority, statement
from protocol.secure_aggregation.keys import own_mask_key, pair_mask_keys, public_of
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.messages import (
    DeviceKeys,
    KeysAnnounced,
    Revealed,
    Roster,
    SecureMessage,
    SharesDelivered,
    SharesSent,
    Survivors,
)
from protocol.secure_aggregation.ring import Words
from protocol.secure_aggregation.shamir import join

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class AttemptBook:
    """What has come, by device; the first message of each kind counts.

    Attributes:
        attempt: of the round.
        authority: whose certificates devices must have; None: the fleet has no identities.
    """

    attempt: Attempt
    authority: KeyAuthority | None = None
    keys: dict[str, DeviceKeys] = field(default_factory=dict)
    shares: dict[str, SharesSent] = field(default_factory=dict)
    reveals: dict[str, Revealed] = field(default_factory=dict)

    def take_keys(self, device: str, message: KeysAnnounced) -> None:
        """Store keys.

        Raises:
            Refused: of another attempt, not signed by the device, or other keys than before.
        """
        self._check_attempt(device, message)
        keys = message.keys
        if self.authority is not None:
            signed = statement(self.attempt, device, keys.cipher, keys.mask)
            self.authority.verify(device, keys.certificate, keys.signature, signed)
        known = self.keys.setdefault(device, keys)
        if (known.cipher, known.mask) != (keys.cipher, keys.mask):
            raise Refused(
                Reason.DUPLICATE, f"{self.attempt.words}: device {device!r} has announced other keys before"
            )

    def take_shares(self, state: SecureState, device: str, message: SharesSent) -> None:
        """Store encrypted shares.

        Raises:
            Refused: of another attempt, not for each neighbour once, or others than before.
        """
        self._check_attempt(device, message)
        wanted = state.graph.get(device, ())
        if set(wanted) != message.sealed.keys():
            raise Refused(
                Reason.MALFORMED,
                f"{self.attempt.words}: shares of device {device!r} for {len(message.sealed)} devices; its "
                f"neighbours are {len(wanted)} others",
            )
        if self.shares.setdefault(device, message) != message:
            raise Refused(
                Reason.DUPLICATE, f"{self.attempt.words}: device {device!r} has sent other shares before"
            )

    def take_reveal(self, state: SecureState, device: str, message: Revealed) -> None:
        """Store the shares that a device was asked for.

        Raises:
            Refused: of another attempt, others than were asked for, or others than before.
        """
        self._check_attempt(device, message)
        asked = self.survivors_for(state, device)
        seeds, masks = message.seeds.keys(), message.masks.keys()
        if seeds != set(asked.delivered) or masks != set(asked.lost):
            raise Refused(
                Reason.MALFORMED,
                f"{self.attempt.words}: device {device!r} has told {len(seeds)} shares of seeds and "
                f"{len(masks)} of masks; asked were {len(asked.delivered)} and {len(asked.lost)}",
            )
        if self.reveals.setdefault(device, message) != message:
            raise Refused(
                Reason.DUPLICATE, f"{self.attempt.words}: device {device!r} has told other shares before"
            )

    def roster_for(self, state: SecureState, device: str) -> Roster:
        """The keys of a device's neighbours, and its own."""
        names = state.graph[device]
        return Roster(
            attempt=self.attempt.digest,
            devices=len(state.joined),
            own=self.keys[device].model_copy(update={"certificate": b"", "signature": b""}),
            neighbours={name: self.keys[name] for name in names},
        )

    def shares_for(self, state: SecureState, device: str) -> SharesDelivered:
        """The shares for a device, of its neighbours that go on."""
        names = [name for name in state.graph[device] if name in state.going]
        return SharesDelivered(
            attempt=self.attempt.digest, sealed={name: self.shares[name].sealed[device] for name in names}
        )

    def survivors_for(self, state: SecureState, device: str) -> Survivors:
        """Which of the neighbours that a device masked with are in the sum."""
        names = [name for name in state.graph[device] if name in state.going]
        return Survivors(
            attempt=self.attempt.digest,
            delivered=tuple(name for name in names if name in state.survivors),
            lost=tuple(name for name in names if name not in state.survivors),
        )

    def remove_masks(self, rules: SecureRules, state: SecureState, total_N: Words) -> None:
        """From the sum of the survivors' vectors, in place; secrets are recovered one after the other.

        Args:
            rules: of the attempt.
            state: ``DONE``.
            total_N: the sum.

        Raises:
            Refused: shares of a device give no secret, or not that of its public key: one is forged.
        """
        edges, threshold = state.graph, threshold_in(rules, state)
        for device in state.going:
            secret = self._secret_of(state, device, edges[device], threshold)
            if device in state.survivors:
                add_mask(total_N, own_mask_key(self.attempt, device, secret), minus=True)
                continue
            if public_of(secret) != self.keys[device].mask:
                raise Refused(
                    Reason.MALFORMED,
                    f"{self._secret_words(device)}: the shares give another key; one is forged",
                )
            publics = {name: self.keys[name].mask for name in edges[device] if name in state.survivors}
            for name, key in pair_mask_keys(self.attempt, device, secret, publics).items():
                # as the survivor's vector has it: the lower name adds
                add_mask(total_N, key, minus=name < device)

    def _secret_of(self, state: SecureState, device: str, names: tuple[str, ...], threshold: int) -> bytes:
        """The seed of a survivor, or the private mask key of a lost device."""
        found: dict[int, bytes] = {}
        for place, name in enumerate(names, start=1):
            reveal = self.reveals.get(name) if name in state.revealed else None
            told: Mapping[str, bytes] = {}
            if reveal is not None:
                told = reveal.seeds if device in state.survivors else reveal.masks
            if device in told:
                found[place] = told[device]
        return join(found, threshold, self._secret_words(device))

    def _secret_words(self, device: str) -> str:
        return f"{self.attempt.words}: secret of device {device!r}"

    def _check_attempt(self, device: str, message: SecureMessage) -> None:
        if message.attempt != self.attempt.digest:
            raise Refused(
                Reason.WRONG_ROUND,
                f"device {device!r}: a {type(message).__name__} of another attempt than {self.attempt.words}",
            )
