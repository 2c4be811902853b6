"""Invariants of secure rounds: what leaves each machine, and what the coordinator has on its disk.

Nothing relies on the daemons' own checks. Masks are computed once more from the secrets on a device's disk,
and taken off what it stores: what is left must be a vector of an update that it has trained. Every version is
folded from those updates, which the coordinator never has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import cbor2

from coordinator.aggregation.round_fold import finish_seed, guiding
from coordinator.recovery.folder_owner import within_epsilon
from edge_agent.secure_aggregation import record
from edge_agent.secure_aggregation.events import MaskingState
from edge_agent.secure_aggregation.service import FILE
from lichen_lab.simulation.deterministic.outcome import JournalBytes
from lichen_lab.simulation.deterministic.protected.uniformity import UNIFORM, histogram
from lichen_lab.simulation.deterministic.scenario.coordinator_state import (
    Outside,
    Violation,
    row_of,
    updates_of,
)
from lichen_lab.simulation.deterministic.scenario.invariants import GroundTruth
from lichen_lab.simulation.deterministic.scenario.scenario import COORDINATOR
from lichen_lab.simulation.deterministic.scenario.toy_guided import train_step
from models.aggregation.masked_sums import SumLayout, layout_of, vector_of
from models.contract import Blobs, Fold, Update
from protocol.frames.frame import Limits, decode_frame, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Receipt
from protocol.secure_aggregation.keys import own_mask_key, pair_mask_keys
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.messages import KeysAnnounced, Revealed, SecureMessage, Survivors
from protocol.secure_aggregation.neighbours import threshold_of
from protocol.secure_aggregation.ring import packed, unpacked
from protocol.secure_aggregation.updates import ATTEMPT, MASKED
from protocol.tasks.folding import SecureAggregation

_LIMITS: Final = Limits(
    max_bytes=1 << 24, max_tensors=1 << 10, max_elements=1 << 24, max_total_elements=1 << 24
)


class Disks(Protocol):
    """The machines' disks, as an observer sees them."""

    def read(self, node: str, name: str) -> bytes | None:
        """A file as it is now; None: it is not there."""

    def is_durable(self, node: str, name: str) -> bool:
        """Whether it would survive a power cut now."""


@dataclass
class _Answers:
    """Whose shares a device has told in an attempt."""

    seeds: set[str] = field(default_factory=set)
    masks: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class SecureTruth(GroundTruth):
    """The knowledge of an observer of a fleet with secure rounds.

    Args:
        options: of the task.
        disks: of the machines.
        hostile: devices whose promises nobody counts on.
        reached: is called with ``masked`` and a device as it stores its masked update.
    """

    options: SecureAggregation
    disks: Disks
    hostile: tuple[str, ...]
    reached: Callable[[str, str], None]
    trained: dict[tuple[str, str], list[Update]] = field(default_factory=dict)
    """Device and base -> what it has trained; no other machine sees it."""
    plain: dict[tuple[str, str], Update] = field(default_factory=dict)
    """Attempt and device -> what it has masked."""
    vectors: dict[tuple[str, str], str] = field(default_factory=dict)
    """The same -> digest of its masked update."""
    neighbours: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    keys: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    """Public key -> who has announced it, and for which attempt."""
    announced: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    answers: dict[bytes, dict[str, _Answers]] = field(default_factory=dict)
    """Attempt -> device -> what it has told."""
    helped: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Device and base -> the attempt whose sum it has helped to open."""
    asked: dict[tuple[bytes, str], str] = field(default_factory=dict)
    """Attempt and device -> which of its secrets the coordinator has asked for."""
    unopened: set[int] = field(default_factory=set)
    """Rounds whose sum stayed closed."""
    opened_sums: int = 0
    stored: set[str] = field(default_factory=set)
    journal: JournalBytes = field(default_factory=JournalBytes)

    # ---- devices

    def trains(self, frame: bytes) -> str:
        """A device has an update, which is not masked yet; returns its name."""
        update = Update(*decode_frame(frame, UpdateHeader))
        self.trained.setdefault((update.header.device, update.header.base), []).append(update)
        return update.header.device

    def spooled(self, device: str, round_: int, digest: str, data: bytes) -> None:
        """A device is about to store a masked update.

        Raises:
            Violation: it has other masks than were agreed on, or tells of the device's data.
        """
        super().spooled(device, round_, digest, data)
        header, masked = _opened(data)
        if header.samples or header.counts or header.missing or header.quality or header.metrics:
            raise Violation(f"the header of {device}'s masked update tells of its data")
        state, attempt = self._record(device), _attempt_of(header)
        plain = self._without_masks(device, state, masked)
        found = [
            one
            for one in self.trained.get((device, header.base), ())
            if device in self.hostile or self._packed(one) == plain
        ]
        if not found:
            raise Violation(f"round {round_}: the vector of {device} does not have the agreed masks")
        if self.vectors.setdefault((attempt, device), digest) != digest:
            raise Violation(f"round {round_}: {device} has masked two vectors alike in one attempt")
        self.plain[attempt, device] = found[-1]
        self.neighbours[attempt, device] = frozenset(state.keys)
        self.reached("masked", device)

    def _without_masks(self, device: str, state: MaskingState, masked: bytes) -> bytes:
        attempt, secrets = state.attempt, state.secrets
        if attempt is None or secrets is None:
            raise Violation(f"{device} stores a masked update, and has no secrets")
        size = len(masked) * 8 // self.options.ring_bits
        vector_N = unpacked(masked, size, self.options.ring_bits)
        add_mask(vector_N, own_mask_key(attempt, device, secrets.seed), minus=True)
        publics = {name: state.keys[name].mask for name in state.held}
        for name, key in pair_mask_keys(attempt, device, secrets.mask, publics).items():
            add_mask(vector_N, key, minus=device < name)
        return packed(vector_N, self.options.ring_bits)

    def _packed(self, update: Update) -> bytes:
        """An update's vector without masks, by the method's own fold."""
        base = self.states[self.manifests.index(update.header.base)]
        fold = self.server.open(self.task, update.header.round, base)
        fold.fold(update)
        return packed(vector_of(fold, self._layout(fold), self.options), self.options.ring_bits)

    def _layout(self, fold: Fold) -> SumLayout:
        """Of a vector."""
        return layout_of(fold)

    def _record(self, device: str) -> MaskingState:
        """A device's state on its disk."""
        data = self.disks.read(device, FILE)
        if data is None:
            raise Violation(f"{device} takes part in a secure round, and nothing of it is on its disk")
        return record.from_bytes(cbor2.loads(data)["state"])

    # ---- messages

    def sends(self, node: str, message: SecureMessage) -> None:
        """A message of a secure round leaves a machine.

        Raises:
            Violation: a key is used again, or too much is told.
        """
        match message:
            case KeysAnnounced():
                self._announces(node, message)
            case Revealed():
                self._reveals(node, message)
            case Survivors() if node == COORDINATOR:
                self._asks(message)
            case _:
                pass

    def _announces(self, node: str, message: KeysAnnounced) -> None:
        for key in (message.keys.mask, message.keys.cipher):
            if (known := self.keys.setdefault(key, (node, message.attempt))) != (node, message.attempt):
                words = f"{node} announces a key that {known[0]} has announced for another attempt"
                raise Violation(f"{words}: a mask is used again")
        if self.announced.setdefault((node, message.attempt), message.keys.mask) != message.keys.mask:
            raise Violation(f"{node} announces two keys in one attempt")

    def _reveals(self, node: str, message: Revealed) -> None:
        state = self._record(node)
        if state.attempt is None or state.attempt.digest != message.attempt or state.survivors is None:
            raise Violation(f"{node} tells shares, and its disk does not say that it was asked")
        if not self.disks.is_durable(node, FILE):
            raise Violation(f"{node} tells shares, and a power cut would let it forget which")
        answers = self.answers.setdefault(message.attempt, {})
        told = answers.setdefault(node, _Answers())
        told.seeds |= message.seeds.keys()
        told.masks |= message.masks.keys()
        if both := sorted(told.seeds & told.masks):
            raise Violation(f"{state.attempt.words}: {node} tells both shares of {both[0]}")
        before = self.helped.setdefault((node, state.attempt.base), message.attempt)
        if before != message.attempt:
            raise Violation(f"{state.attempt.words}: {node} helps with a second sum from one version")

    def _asks(self, message: Survivors) -> None:
        sides = dict.fromkeys(message.delivered, "seed") | dict.fromkeys(message.lost, "mask key")
        for device, secret in sides.items():
            if self.asked.setdefault((message.attempt, device), secret) != secret:
                raise Violation(f"the coordinator asks for both secrets of {device} in one attempt")

    # ---- the coordinator

    def told(self, outside: Outside, device: str, receipt: Receipt) -> None:
        """The coordinator decides to send a receipt; what is in its journal is counted, byte by byte."""
        super().told(outside, device, receipt)
        row = None if receipt.status == "refused" else row_of(outside, device, receipt.digest)
        if row is None or receipt.digest in self.stored:
            return
        file = self.disks.read(COORDINATOR, f"updates/{row['round']}/{row['file'] or receipt.digest}")
        frame = self.frames[receipt.digest].data
        if file is None or frame not in file:  # its round is over
            return
        self.stored.add(receipt.digest)
        header, masked = _opened(frame)
        update = self.plain[_attempt_of(header), device]
        self.journal.masked_V += histogram(masked)
        self.journal.control_V += histogram(self._packed(update))

    @property
    def may_lose(self) -> bool:
        """Yes: an attempt may fail before its sum was asked for; then there is another one."""
        return True

    def _fold(self, outside: Outside, version: int, row: dict[str, Any]) -> tuple[Blobs, tuple[str, ...]]:
        if row["devices"]:
            return super()._fold(outside, version, row)
        if left := [r["device"] for r in updates_of(outside, version) if not r["lost"]]:
            raise Violation(
                f"the sum of round {version} stayed closed, and updates of {left} are not withdrawn"
            )
        self.unopened.add(version)
        state = self.states[version - 1]
        last = within_epsilon(self.task).rounds.count
        return (self._finished(version, state) if version >= last else state), ()

    def _folded(self, version: int, updates: list[Update], digests: tuple[str, ...]) -> Blobs:
        """Of what devices trained, not of what they sent."""
        del digests
        attempt, devices = self._opened_sum(version, updates)
        fold = self.server.open(self.task, version, self.states[version - 1])
        for device in devices:
            fold.fold(self.plain[attempt, device])
        return self._finished(version, fold.close())

    def _finished(self, version: int, made: Blobs) -> Blobs:
        """After the training of a guided round; nobody has looked at an update."""
        if guiding(self.server) is None:
            return made
        return train_step(version, finish_seed(self.task, version), made)

    def _opened_sum(self, version: int, updates: list[Update]) -> tuple[str, list[str]]:
        """The attempt of a version's updates, and their devices; it could be opened."""
        devices = [one.header.device for one in updates]
        attempts = {_attempt_of(one.header) for one in updates}
        if len(attempts) != 1 or len(devices) < self.options.min_devices:
            raise Violation(f"version {version} is a sum of {len(attempts)} attempts, over {devices}")
        attempt = attempts.pop()
        self._had_answers(version, attempt, devices)
        self.opened_sums += 1
        return attempt, devices

    def _had_answers(self, version: int, attempt: str, devices: list[str]) -> None:
        """No secret without the answers of a threshold of neighbours; of no device both."""
        answers = self.answers.get(bytes.fromhex(attempt), {})
        for device in devices:
            among = self.neighbours[attempt, device]
            seeds = sum(device in answers[name].seeds for name in among & answers.keys())
            masks = sum(device in answers[name].masks for name in among & answers.keys())
            if seeds < (least := threshold_of(len(among))):
                raise Violation(
                    f"version {version} is opened, and {seeds} of {least} neighbours answered for {device}"
                )
            if masks >= least:
                raise Violation(f"version {version}: both secrets of {device} can be recovered")

    def at_end(self) -> None:
        """Look at all that the journal had.

        Raises:
            Violation: it is not uniform; or what is not masked is, so that the test shows nothing.
        """
        if not self.stored:
            return
        masked, control = self.journal.deviations
        if masked > UNIFORM:
            raise Violation(f"masked updates in the journal are {masked:.1f} deviations from uniform bytes")
        if control <= UNIFORM:
            raise Violation(f"plain vectors are {control:.1f} deviations from uniform bytes: a blind test")


def _opened(frame: bytes) -> tuple[UpdateHeader, bytes]:
    """A frame's header and masked vector."""
    header, tensors = open_frame(frame, UpdateHeader, _LIMITS)
    if set(tensors) != {MASKED} or ATTEMPT not in header.extra:
        raise Violation(f"{header.device} stores an update with the tensors {sorted(tensors)}, not masked")
    return header, bytes(tensors[MASKED].data)


def _attempt_of(header: UpdateHeader) -> str:
    """Digest of a masked update's attempt, hexadecimal."""
    return str(header.extra[ATTEMPT])
