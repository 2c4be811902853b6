"""Invariants of rounds with a table ``[privacy]``: clip, noise, account and the devices' floors.

The noise is drawn once more from the secret on the coordinator's disk; norms are measured in float64.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import sqlalchemy as sa

from coordinator.privacy.noise_secret import FILE
from coordinator.round_machine.events import RoundState
from coordinator.storage import schema
from edge_agent.config.privacy import PrivacySettings
from lichen_lab.simulation.deterministic.protected.secure_truth import Disks
from lichen_lab.simulation.deterministic.scenario.coordinator_state import (
    Outside,
    Violation,
)
from lichen_lab.simulation.deterministic.scenario.invariants import GroundTruth
from lichen_lab.simulation.deterministic.scenario.scenario import COORDINATOR
from models.aggregation.exact_sums import FixedPointSum
from models.contract import Blobs, Update
from models.privacy.accountant import epsilon_after
from models.privacy.adaptive_clip import WITHIN, next_clip
from models.privacy.key_stream import derived_key
from models.privacy.noisy_fold import RoundNoise, steadied
from models.tensors import flatten
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Receipt
from protocol.tasks.folding import Privacy

_SLACK: Final = 1 + 1e-6
_SPREAD: Final = 8.0
"""Standard errors by which a measured standard deviation may be off; normal noise has such one in 1e15."""


@dataclass(kw_only=True)
class PrivateTruth(GroundTruth):
    """The knowledge of an observer of a fleet with privacy.

    Args:
        privacy: of the task.
        disks: of the machines.
        floors: by device.
    """

    privacy: Privacy
    disks: Disks
    floors: dict[str, PrivacySettings]
    clips: dict[int, float] = field(default_factory=dict)
    """Version -> clip of the round that starts from it."""
    made: dict[tuple[int, str | None, tuple[str, ...]], str] = field(default_factory=dict)
    """Version, parent and devices -> manifest of the first fold; a repeated one must give the same."""
    repeated: int = 0
    """Folds that were repeated."""
    secret: str = ""
    noiseless: Blobs = field(default_factory=dict)
    """The newest version without its noise."""

    def spooled(self, device: str, round_: int, digest: str, data: bytes) -> None:
        """A device is about to store an update.

        Raises:
            Violation: the task does not meet its floors.
        """
        super().spooled(device, round_, digest, data)
        if why := self._below(self.floors.get(device, PrivacySettings()), self._clip(round_)):
            raise Violation(f"{device} takes part in round {round_}: {why}")

    def _below(self, floors: PrivacySettings, clip: float) -> str:
        """Which floor the task does not meet, in words."""
        its = self.privacy
        if its.noise_multiplier < floors.min_noise_multiplier:
            return f"its owner wants noise of {floors.min_noise_multiplier:g}"
        if floors.max_epsilon is not None and not (its.max_epsilon or math.inf) <= floors.max_epsilon:
            return f"its owner allows epsilon {floors.max_epsilon:g}"
        if floors.max_clip is not None and clip > floors.max_clip:
            return f"its owner allows a clip of {floors.max_clip:g}, this one is {clip:g}"
        return ""

    def told(self, outside: Outside, device: str, receipt: Receipt) -> None:
        """The coordinator decides to send a receipt.

        Raises:
            Violation: it accepts an update that is longer than the clip.
        """
        super().told(outside, device, receipt)
        if receipt.status != "refused":
            self._require_clipped(receipt.round, decode_frame(self.frames[receipt.digest].data, UpdateHeader))

    def _require_clipped(self, round_: int, update: tuple[UpdateHeader, dict[str, np.ndarray]]) -> None:
        header, tensors = update
        norm = math.sqrt(sum(float((x.astype(np.float64) ** 2).sum()) for x in tensors.values()))
        if norm > self._clip(round_) * _SLACK:
            words = f"the norm {norm:.6g}, the clip of round {round_} is {self._clip(round_):g}"
            raise Violation(f"{header.device}'s update counts, and it has {words}")
        if header.weight != 1:
            raise Violation(f"{header.device}'s update counts with a weight of {header.weight}")

    def _clip(self, round_: int) -> float:
        return self.clips.get(round_ - 1, self.privacy.clip)

    def published(self, version: int, parent: str | None, devices: tuple[str, ...], digest: str) -> None:
        """A fold has given a version, which is not in the tables yet.

        Raises:
            Violation: a fold of the same updates gave another one before: with other noise, or without.
        """
        fold = (version, parent, tuple(sorted(devices)))
        self.repeated += fold in self.made
        if self.made.setdefault(fold, digest) != digest:
            raise Violation(f"version {version} was folded twice from the same updates, with other noise")

    def _made(self, outside: Outside, version: int, state: RoundState) -> None:
        super()._made(outside, version, state)
        if version:
            self._is_noisy(version)
        self._accounted(outside, version)

    def _is_noisy(self, version: int) -> None:
        """The noise of a version has the size that its table says, measured over all values."""
        made, without = flatten(self.states[version]), flatten(self.noiseless)
        noise_N = np.concatenate([(made[name] - x).ravel() for name, x in without.items()], dtype=np.float64)
        divisor = self.privacy.divisor(len(self.counted[version]))
        found = float(np.sqrt((noise_N**2).mean())) * divisor / self._clip(version)
        wanted = self.privacy.sum_multiplier
        if abs(found / wanted - 1) > _SPREAD / math.sqrt(2 * noise_N.size):
            raise Violation(f"the noise of version {version} is {found:.3g} clips, and not {wanted:.3g}")

    def _noise(self, version: int) -> RoundNoise:
        """Of a version's round, from the secret on the coordinator's disk."""
        secret = (self.disks.read(COORDINATOR, FILE) or b"").decode()
        self.secret = self.secret or secret
        if secret != self.secret:
            raise Violation("the secret of the noise has changed: a repeated fold has other noise")
        about = ("round", self.task.name, str(version), self.manifests[version - 1])
        private = self.privacy.model_copy(update={"clip": self._clip(version)})
        return RoundNoise(private, derived_key(bytes.fromhex(secret), about))

    def _folded(self, version: int, updates: list[Update], digests: tuple[str, ...]) -> Blobs:
        for one in updates:
            self._require_clipped(version, (one.header, dict(one.tensors)))
        before = self.states[version - 1]
        noisy, without = (self.server.open(self.task, version, before) for _ in range(2))
        for one in updates:
            noisy.fold(one)
            without.fold(one)
        for part in without.parts().values():
            assert isinstance(part, FixedPointSum)  # noqa: S101 - or a clip would not cover it
            part.add_noise(lambda count: np.zeros(count, np.int64), self.privacy.divisor(len(updates)))
        self.noiseless = without.close()
        self._noise(version).add(noisy, digests)
        return steadied(before, noisy.close())

    def _accounted(self, outside: Outside, version: int) -> None:
        """A version has its account, which is right and within the limit."""
        table, privacy = schema.privacy, self.privacy
        rows = outside.rows(sa.select(table).where(table.c.version == version))
        if not rows:
            raise Violation(f"version {version} has no account of its privacy")
        account = rows[0]["account"]
        wanted = epsilon_after(privacy, version)
        if (account["releases"], account["epsilon"]) != (version, wanted):
            raise Violation(f"version {version}: its account is {account['words']}; epsilon is {wanted:.4g}")
        if wanted > (privacy.max_epsilon or math.inf):
            raise Violation(f"version {version} has epsilon {wanted:.4g}, over {privacy.max_epsilon:g}")
        if privacy.adaptive_clip is None:
            return
        self.clips[version] = account["clip"]
        digests = self.counted[version]
        bits = [self._within(digest) for digest in digests]
        wanted = privacy.clip
        if version:
            wanted = next_clip(self._noise(version), privacy.clip, bits, digests)
        if account["clip"] != wanted:
            raise Violation(f"version {version} sets the clip to {account['clip']:g}, not to {wanted:g}")

    def _within(self, digest: str) -> float:
        header, _ = decode_frame(self.frames[digest].data, UpdateHeader)
        return header.metrics.get(WITHIN, 0.0)
