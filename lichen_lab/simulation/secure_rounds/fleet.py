"""Fleets for secure rounds in this process: devices with vectors, and identities of a real authority."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives import serialization

from coordinator.identity import certificates
from coordinator.secure_aggregation.events import SecureRules
from edge_agent.secure_aggregation.events import MaskingRules
from lichen_lab.simulation.secure_rounds.driver import SimulatedCoordinator, SimulatedDevice
from models.privacy.shared_noise import SharedNoise
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import IdentitySigner, KeyAuthority
from protocol.secure_aggregation.ring import Words
from protocol.tasks.folding import SecureAggregation

_SPAN: Final = certificates.Span(1.7e9, 2.0e9)


def attempt_of(round_: int = 1, attempt: int = 1, base: str = "ab" * 32) -> Attempt:
    """An attempt of a fleet of this process."""
    salt = hashlib.sha256(f"{round_}/{base}".encode()).hexdigest()[:32]
    return Attempt("lab", "lab", round_, attempt, base, salt)


def identities(names: Sequence[str]) -> tuple[KeyAuthority, Mapping[str, IdentitySigner]]:
    """An authority, and a certificate of it for each device."""
    key = certificates.new_key()
    ca = certificates.self_signed(key, "lab", _SPAN)
    signers = {}
    for name in names:
        own = certificates.new_key()
        leaf = certificates.signed(key, ca, own.public_key(), name, _SPAN, purpose=certificates.CLIENT)
        signers[name] = IdentitySigner(leaf.public_bytes(serialization.Encoding.DER), own)
    return KeyAuthority((ca.public_bytes(serialization.Encoding.DER),)), signers


def fleet_of(
    vectors: Mapping[str, Words],
    options: SecureAggregation,
    *,
    attempt: Attempt | None = None,
    known: tuple[KeyAuthority, Mapping[str, IdentitySigner]] | None = None,
    device: type[SimulatedDevice] = SimulatedDevice,
    noise: SharedNoise | None = None,
) -> tuple[SimulatedCoordinator, dict[str, SimulatedDevice]]:
    """A fresh coordinator, and devices whose updates are ready.

    Args:
        vectors: by device, of one size.
        options: of the task.
        attempt: of the round; None: the first.
        known: identities; None: a fleet without.
        device: their class.
        noise: of which each device adds a share.
    """
    attempt = attempt or attempt_of()
    authority, signers = known or (None, {})
    size = next(iter(vectors.values())).size
    rules = SecureRules(options, attempt.digest, noise=noise)
    coordinator = SimulatedCoordinator(rules, attempt, size, len(vectors), authority)
    devices = {
        name: device(MaskingRules(name, options, signers.get(name), authority, noise), vector_N)
        for name, vector_N in vectors.items()
    }
    return coordinator, devices
