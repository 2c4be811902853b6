"""One attempt of a secure round in this process, with devices that are lost at chosen stages.

Both machines are the daemons' own. Each state goes through its record before a command is carried out, as it
does on a disk: so an attempt that finishes here resumes after a kill at any stage.
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.secure_aggregation import record as coordinator_record
from coordinator.secure_aggregation.book import AttemptBook
from coordinator.secure_aggregation.events import (
    AskForShares,
    KeysCame,
    MaskedCame,
    OpenSum,
    RevealCame,
    SecureCommand,
    SecureEvent,
    SecurePhase,
    SecureResumed,
    SecureRules,
    SecureState,
    SendRosters,
    SendShares,
    SharesCame,
    StageTick,
    SumSpoilt,
)
from coordinator.secure_aggregation.table import apply as apply_coordinator
from edge_agent.secure_aggregation import record as device_record
from edge_agent.secure_aggregation.events import (
    IDLE,
    DeliveryCame,
    MaskingCommand,
    MaskingEvent,
    MaskingInvited,
    MaskingResumed,
    MaskingRules,
    MaskingState,
    MaskUpdate,
    RosterCame,
    SendMasked,
    SurvivorsCame,
    Tell,
    UpdateMasked,
)
from edge_agent.secure_aggregation.masking import masked_vector
from edge_agent.secure_aggregation.table import apply as apply_device
from protocol.errors import Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority
from protocol.secure_aggregation.keys import NONCE_BYTES, Secrets
from protocol.secure_aggregation.messages import (
    KeysAnnounced,
    MaskedUpdate,
    Revealed,
    Roster,
    SecureMessage,
    SharesDelivered,
    SharesSent,
    Survivors,
    decode,
    encode,
)
from protocol.secure_aggregation.ring import Words, unpacked, zeros

STAGES = ("keys", "shares", "masked", "unmask")
_SLACK_BYTES = 1024


@dataclass
class SimulatedDevice:
    """A device whose update is ready.

    Attributes:
        rules: of its machine.
        vector_N: the update's vector, not masked.
        entropy: the system's, or a test's.
    """

    rules: MaskingRules
    vector_N: Words = field(repr=False)
    entropy: Callable[[int], bytes] = secrets.token_bytes
    state: MaskingState = IDLE
    masked: bytes = field(default=b"", repr=False)
    """As on its disk."""

    @property
    def name(self) -> str:
        """The device's."""
        return self.rules.device

    def join(self, attempt: Attempt) -> list[SecureMessage]:
        """Take part in an attempt."""
        return self.take(MaskingInvited(attempt, self.entropy(Secrets.entropy_bytes)))

    def receive(self, payload: bytes) -> list[SecureMessage]:
        """The answers to a message of the coordinator.

        Raises:
            Refused: the device does not do what it is asked.
        """
        message = decode(payload, Roster, SharesDelivered, Survivors)
        match message:
            case Roster():
                nonces = self.entropy(NONCE_BYTES * len(message.neighbours))
                return self.take(RosterCame(message, nonces))
            case SharesDelivered():
                return self.take(DeliveryCame(message))
            case Survivors():
                return self.take(SurvivorsCame(message))
            case _:
                raise TypeError(f"{type(message).__name__} is no message for devices")

    def take(self, event: MaskingEvent) -> list[SecureMessage]:
        """Apply an event, store the state, and carry the commands out."""
        state, commands = apply_device(self.rules, self.state, event)
        self.state = device_record.from_bytes(device_record.to_bytes(state))
        return [message for command in commands for message in self._act(command)]

    def mask(self, plan: MaskUpdate) -> bytes:
        """The packed vector with all masks of a plan."""
        return masked_vector(self.vector_N, plan, self.rules.options.ring_bits)

    def _act(self, command: MaskingCommand) -> list[SecureMessage]:
        match command:
            case Tell():
                return [command.message]
            case MaskUpdate():
                self.masked = self.mask(command)
                return self.take(UpdateMasked(hashlib.sha256(self.masked).hexdigest()))
            case SendMasked():
                attempt = self.state.attempt
                return [] if attempt is None else [MaskedUpdate(attempt=attempt.digest, masked=self.masked)]


@dataclass
class SimulatedCoordinator:
    """The coordinator of one attempt.

    Attributes:
        rules: of its machine.
        attempt: of the round.
        size: elements of a vector.
        authority: as of the book.
    """

    rules: SecureRules
    attempt: Attempt
    size: int
    expected: int
    authority: KeyAuthority | None = None
    masked: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Its journal."""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.state = SecureState(expected=self.expected, closes=self.rules.stage_s)
        self.book = AttemptBook(self.attempt, self.authority)
        self.total_N: Words | None = None

    def receive(self, device: str, payload: bytes) -> list[tuple[str, SecureMessage]]:
        """Messages for devices, by receiver, that follow from one of a device.

        Raises:
            Refused: the message is not accepted.
        """
        most = self.size * self.rules.options.ring_bits // 8 + _SLACK_BYTES
        message = decode(
            payload, KeysAnnounced, SharesSent, MaskedUpdate, Revealed, max_bytes=max(most, 1 << 20)
        )
        match message:
            case KeysAnnounced():
                self.book.take_keys(device, message)
                return self.take(KeysCame(device))
            case SharesSent() if self.state.phase is SecurePhase.SHARES:
                self.book.take_shares(self.state, device, message)
                return self.take(SharesCame(device))
            case MaskedUpdate() if self.state.phase is SecurePhase.MASKED:
                unpacked(message.masked, self.size, self.rules.options.ring_bits)
                self.masked.setdefault(device, message.masked)
                return self.take(MaskedCame(device))
            case Revealed() if self.state.phase is SecurePhase.UNMASK:
                self.book.take_reveal(self.state, device, message)
                return self.take(RevealCame(device))
            case _:
                return []  # too late

    def end_stage(self) -> list[tuple[str, SecureMessage]]:
        """Let the stage's time be over."""
        self.now = max(self.now, self.state.closes)
        return self.take(StageTick())

    def restart(self) -> list[tuple[str, SecureMessage]]:
        """As after a kill: all messages of the last announcement again."""
        return self.take(SecureResumed())

    def take(self, event: SecureEvent) -> list[tuple[str, SecureMessage]]:
        """Apply an event, store state and messages, and carry the commands out."""
        state, commands = apply_coordinator(self.rules, self.state, event, self.now)
        if commands or state.phase is not self.state.phase:  # in between, each message is one row
            stored = coordinator_record.to_bytes(state, self.book)
            state, self.book = coordinator_record.from_bytes(stored, self.rules, self.attempt, self.authority)
        self.state = state
        return [message for command in commands for message in self._act(command)]

    def _act(self, command: SecureCommand) -> Iterator[tuple[str, SecureMessage]]:
        match command:
            case SendRosters():
                yield from ((one, self.book.roster_for(self.state, one)) for one in self.state.joined)
            case SendShares():
                yield from ((one, self.book.shares_for(self.state, one)) for one in self.state.going)
            case AskForShares():
                yield from ((one, self.book.survivors_for(self.state, one)) for one in self.state.survivors)
            case OpenSum():
                try:
                    self.total_N = self.opened()
                except Refused as refused:
                    yield from self.take(SumSpoilt(refused.detail))

    def opened(self) -> Words:
        """The sum of the survivors' vectors, without masks.

        Raises:
            Refused: a share is forged.
        """
        bits = self.rules.options.ring_bits
        total_N = zeros(self.size, bits)
        for device in self.state.survivors:
            total_N += unpacked(self.masked[device], self.size, bits)
        self.book.remove_masks(self.rules, self.state, total_N)
        return total_N


@dataclass
class Transcript:
    """All that was sent: sender, receiver (empty: the coordinator) and message, in order; and refusals."""

    sent: list[tuple[str, str, SecureMessage]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def play(
    coordinator: SimulatedCoordinator,
    devices: Mapping[str, SimulatedDevice],
    lost: Mapping[str, Collection[str]] | None = None,
    *,
    restarts: bool = False,
) -> Transcript:
    """Play an attempt to its end.

    Args:
        coordinator: fresh.
        devices: by name; they learn of the attempt from here.
        lost: by stage, devices that send nothing from that stage on.
        restarts: after each stage, the coordinator and all devices are started again.

    Returns:
        What was sent. The coordinator's ``total_N`` and ``state`` tell the result.
    """
    transcript, gone = Transcript(), set[str]()
    inbox: list[tuple[str, SecureMessage]] = []
    for stage in STAGES:
        gone |= set((lost or {}).get(stage, ()))
        answers = [
            (name, message)
            for name, device in devices.items()
            if name not in gone
            for message in _answers(device, coordinator, stage, inbox, transcript)
        ]
        if restarts:
            answers += [
                (name, message)
                for name, device in devices.items()
                if name not in gone
                for message in device.take(MaskingResumed())
            ]
        inbox = []
        for name, message in answers:
            transcript.sent.append((name, "", message))
            try:
                inbox += coordinator.receive(name, encode(message))
            except Refused as refused:
                transcript.refusals.append(refused.detail)
        inbox += [] if inbox else coordinator.end_stage()
        if restarts:
            inbox += coordinator.restart()
        transcript.sent += [("", name, message) for name, message in inbox]
        if coordinator.state.phase in {SecurePhase.DONE, SecurePhase.FAILED}:
            break
    return transcript


def _answers(
    device: SimulatedDevice,
    coordinator: SimulatedCoordinator,
    stage: str,
    inbox: list[tuple[str, SecureMessage]],
    transcript: Transcript,
) -> list[SecureMessage]:
    try:
        if stage == STAGES[0]:
            return device.join(coordinator.attempt)
        mine = [encode(message) for name, message in inbox if name == device.name]
        return [answer for payload in mine for answer in device.receive(payload)]
    except Refused as refused:
        transcript.refusals.append(refused.detail)
        return []
