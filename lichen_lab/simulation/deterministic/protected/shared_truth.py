"""Invariants of secure rounds whose devices add noise: its size, its keys, and both sides' accounts.

The noise is drawn once more from the key on a device's disk, and taken off what the device stores.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import sqlalchemy as sa

from coordinator.aggregation.fold import close_fold
from coordinator.round_machine.events import RoundState
from coordinator.storage import schema
from edge_agent.secure_aggregation import noise_account
from edge_agent.secure_aggregation.events import MaskingState
from edge_agent.secure_aggregation.masking import noise_of
from lichen_lab.simulation.deterministic.protected.secure_truth import SecureTruth
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Outside, Violation
from models.aggregation.masked_sums import SumLayout, absorb_vector, layout_of
from models.contract import Blobs, Fold, Update
from models.privacy.shared_noise import SharedNoise
from protocol.secure_aggregation.ring import packed, to_numbers, unpacked, zeros
from protocol.tasks.folding import Privacy

_SPREAD: Final = 8.0
"""Standard errors by which a measured standard deviation may be off."""


@dataclass(kw_only=True)
class SharedTruth(SecureTruth):
    """The knowledge of an observer of a fleet whose devices add noise.

    Args:
        privacy: of the task.
        noise: of its devices.
    """

    privacy: Privacy
    noise: SharedNoise
    noisy: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Attempt and device -> its vector with noise and without masks."""
    noise_keys: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    """Key of noise -> whose it is, and in which attempt."""
    owed: dict[str, dict[str, float]] = field(default_factory=dict)
    """Device -> attempt in which it has masked an update -> rho."""

    def _layout(self, fold: Fold) -> SumLayout:
        return layout_of(fold, noisy=True)

    def _without_masks(self, device: str, state: MaskingState, masked: bytes) -> bytes:
        """Without the noise, too.

        Raises:
            Violation: the noise has a key that served before, or the wrong size; or its cost is not on the
                device's disk.
        """
        plain, bits = super()._without_masks(device, state, masked), self.options.ring_bits
        attempt, secrets = state.attempt, state.secrets
        assert attempt is not None  # noqa: S101 - there are masks
        assert secrets is not None  # noqa: S101
        whose = (attempt.digest.hex(), device)
        if self.noise_keys.setdefault(secrets.noise, whose) != whose:
            raise Violation(f"{device} draws noise from a key that served before: sums tell their difference")
        self.noisy[whose] = plain
        vector_N = unpacked(plain, len(plain) * 8 // bits, bits)
        noise_N = noise_of((secrets.noise, self.noise.sigma), vector_N)
        self._has_the_size(device, to_numbers(noise_N, bits))
        assert state.roster is not None  # noqa: S101
        fewest = noise_account.fewest_devices(self.noise, len(state.keys), state.roster.devices)
        self.owed.setdefault(device, {})[whose[0]] = self.noise.rho(fewest)
        self._has_paid(device)
        return packed(vector_N - noise_N, bits)

    def _has_the_size(self, device: str, noise_N: np.ndarray) -> None:
        found = math.sqrt(float((noise_N.astype(np.float64) ** 2).mean()))
        wanted = self.privacy.noise_multiplier * self.noise.norm / math.sqrt(self.options.min_devices)
        if found < wanted * (1 - _SPREAD / math.sqrt(2 * noise_N.size)):
            raise Violation(f"the noise of {device} is {found:.4g} steps, and not {wanted:.4g}")

    def _has_paid(self, device: str) -> None:
        """The cost of each attempt is in the device's account, and would survive a power cut."""
        data = self.disks.read(device, noise_account.FILE)
        paid = 0.0 if data is None else float(json.loads(data)["rho"])
        owed = sum(self.owed[device].values())
        if paid < owed * (1 - 1e-9):
            words = f"{device} masks an update, and its account has a rho of {paid:.4g}, not of {owed:.4g}"
            raise Violation(words)
        if not self.disks.is_durable(device, noise_account.FILE):
            raise Violation(f"{device} masks an update, and a power cut would let it forget what that costs")

    def _folded(self, version: int, updates: list[Update], digests: tuple[str, ...]) -> Blobs:
        """The sum of vectors with their noise; no other noise is in it."""
        attempt, devices = self._opened_sum(version, updates)
        before = self.states[version - 1]
        fold = self.server.open(self.task, version, before)
        layout, bits = self._layout(fold), self.options.ring_bits
        total_N = zeros(layout.size, bits)
        for device in devices:
            total_N += unpacked(self.noisy[attempt, device], layout.size, bits)
        reach = self.noise.reach(len(devices))
        absorb_vector(fold, layout, self.options, total_N, len(devices), largest=reach)
        return self._finished(version, close_fold(self.task, before, fold, None, digests))

    def _made(self, outside: Outside, version: int, state: RoundState) -> None:
        super()._made(outside, version, state)
        rows = outside.rows(sa.select(schema.privacy).where(schema.privacy.c.version == version))
        if not rows:
            raise Violation(f"version {version} has no account of its privacy")
        account, wanted = rows[0]["account"], self.noise.epsilon(version, self.privacy.delta)
        if (account["releases"], account["epsilon"], account["noise_by"]) != (version, wanted, "devices"):
            raise Violation(f"version {version}: its account is {account['words']}; epsilon is {wanted:.4g}")
        if wanted > (self.privacy.max_epsilon or math.inf):
            raise Violation(f"version {version} has epsilon {wanted:.4g}, over {self.privacy.max_epsilon:g}")
