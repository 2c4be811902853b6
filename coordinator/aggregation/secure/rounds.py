"""The secure rounds of a task: answers the devices' messages, and opens the sum (docs/secure-aggregation.md).

One attempt at a time, that of the open round. Keys, shares and answers of a stage are in memory until it
ends; then state and messages are one atomic file, written before anything is announced. Devices repeat what
has no answer, so what a kill forgets comes again. Masked updates are ordinary updates of the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.aggregation.secure.attempt_file import AttemptFile
from coordinator.aggregation.secure.opening import SumOpener
from coordinator.aggregation.secure.reports import SecureReports
from coordinator.round_machine.device_sets import NONE, DeviceSet
from coordinator.round_machine.events import RoundPhase, RoundState
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
    SecureRules,
    SecureState,
    SendRosters,
    SendShares,
    SharesCame,
    StageTick,
    SumSpoilt,
)
from coordinator.secure_aggregation.report import given_up, report_of
from coordinator.secure_aggregation.table import apply
from coordinator.secure_aggregation.words import words_of
from coordinator.storage.update_journal import AcceptedUpdate
from models.contract import Blobs
from models.privacy.shared_noise import SharedNoise
from protocol.errors import LichenError, Reason, Refused
from protocol.frames.frame import Limits
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority
from protocol.secure_aggregation.messages import (
    KeysAnnounced,
    Revealed,
    SecureMessage,
    SharesSent,
    decode,
    encode,
)
from protocol.secure_aggregation.updates import ATTEMPT
from protocol.tasks.folding import SecureAggregation
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.mqtt.running_link import MessagePublisher

log = structlog.get_logger(__name__)

TICK_S: Final = 0.5
ASK_AGAIN_S: Final = 5.0
_KEYS_SHARE: Final = 0.5
"""Of the time until the round's deadline: until then devices announce keys."""
_STAGE_SHARE: Final = 0.2
"""Of the same: for shares, and again for the answers after the round has closed."""
_AT_ONCE: Final = 16
Lose = Callable[[int, UnusableUpdates], Awaitable[None]]


@dataclass(eq=False, kw_only=True)
class SecureRounds:
    """A service, and the handler of secure messages.

    Args:
        options: of the task.
        opener: makes versions of sums.
        file: of the present attempt.
        rounds: the round machine's state.
        task: its name.
        fleet: the namespace of the task's topics.
        authority: whose certificates devices must have; None: the fleet has no identities.
        link: publishes.
        clock: of pauses.
        now: seconds on the driver's time line.
        noise: that devices add, of a task with ``[privacy]``.
        reports: gets a report at the end of each stage, for status and pages.
    """

    options: SecureAggregation
    opener: SumOpener
    file: AttemptFile
    rounds: Callable[[], RoundState]
    task: str
    fleet: str
    authority: KeyAuthority | None
    link: MessagePublisher
    clock: Clock
    now: Callable[[], float]
    noise: SharedNoise | None = None
    reports: SecureReports | None = None

    def __post_init__(self) -> None:
        self._attempt: Attempt | None = None
        self._state, self._book = SecureState(), AttemptBook(self._placeholder())
        self._rules = SecureRules(self.options, b"")
        self._asked: DeviceSet = NONE
        self._lock = asyncio.Lock()
        self._loaded = asyncio.Event()

    def _placeholder(self) -> Attempt:
        return Attempt(self.fleet, self.task, 0, 0, "", "")

    @property
    def why(self) -> str:
        """The stage in words; empty before the first attempt."""
        return "" if self._attempt is None else words_of(self._attempt, self._state)

    async def run(self, lose: Lose) -> None:
        """Follow the round machine, for ever; ``lose`` reports updates of an earlier attempt as lost."""
        await asyncio.to_thread(self._load)
        self._loaded.set()
        while True:
            try:
                await self._follow(lose)
            except (LichenError, OSError) as error:
                log.warning("secure_round_waits", why=str(error))
            await self.clock.sleep(TICK_S)

    async def on_message(self, device: str, payload: bytes) -> None:
        """Take keys, shares or an answer. What is late, or of another attempt, is ignored.

        Raises:
            Refused: it is wrong.
            Transient: it cannot be stored now; the device sends it again.
        """
        message = decode(payload, KeysAnnounced, SharesSent, Revealed)
        await self._loaded.wait()
        if self._attempt is None or message.attempt != self._attempt.digest:
            return
        async with self._lock:
            await self._take(device, message)

    async def _take(self, device: str, message: SecureMessage) -> None:
        state = self._state
        match message:
            case KeysAnnounced() if self.rounds().asks(device):
                await asyncio.to_thread(self._book.take_keys, device, message)
                if state.phase is SecurePhase.KEYS:
                    await self._apply(KeysCame(device))
                elif state.phase is SecurePhase.SHARES and device in state.joined:
                    await self._send([(device, self._book.roster_for(state, device))])
            case SharesSent() if state.phase in {SecurePhase.SHARES, SecurePhase.MASKED}:
                self._book.take_shares(state, device, message)
                if state.phase is SecurePhase.SHARES:
                    await self._apply(SharesCame(device))
                elif device in state.going:
                    await self._send([(device, self._book.shares_for(state, device))])
            case Revealed() if state.phase is SecurePhase.UNMASK and device in state.survivors:
                self._book.take_reveal(state, device, message)
                await self._apply(RevealCame(device))
            case _:
                pass

    async def ready(self) -> None:
        """Wait until the attempt on the disk is known: updates are checked against it."""
        await self._loaded.wait()

    def check_update(self, model: Blobs, header: UpdateHeader, tensors: Mapping[str, Encoded]) -> None:
        """Check a masked update: of this attempt, by a device that was told to mask, and nothing else in it.

        Raises:
            Refused: the detail says what is wrong.
        """
        state, attempt = self._state, self._attempt
        extra = dict(header.extra)
        if attempt is None or extra.pop(ATTEMPT, None) != attempt.digest.hex():
            raise Refused(Reason.WRONG_ROUND, "the update is not masked for the present attempt of its round")
        if state.phase is not SecurePhase.MASKED or header.device not in state.going:
            raise Refused(Reason.NOT_SELECTED, f"{header.device} was not told to mask in {attempt.words}")
        self.opener.check_message(extra)
        self.opener.vector(attempt.base, model, tensors)

    async def fold(
        self, round_: int, state: Blobs, entries: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[Blobs, tuple[str, ...]]:
        """Open the sum of a closed round, and make the next version.

        Args:
            round_: number of the round.
            state: the version that the updates start from, with moments.
            entries: accepted masked updates.
            limits: of an update.

        Returns:
            The next version, and the devices in it. None are in it where the sum stays closed after devices
            were asked for shares: a further attempt could tell single updates, so the round has no result.

        Raises:
            UnusableUpdates: the masks cannot be removed; another attempt may succeed.
        """
        await self._loaded.wait()
        async with self._lock:
            await self._close_round(round_, entries)
        again_at = 0.0
        while self._state.phase is SecurePhase.UNMASK:
            async with self._lock:
                if self.clock.now() >= again_at:
                    again_at = self.clock.now() + ASK_AGAIN_S
                    await self._ask()
                await self._apply(StageTick())
            await self.clock.sleep(TICK_S)
        if self._state.phase is SecurePhase.DONE:
            try:
                found = self._rules, self._state, self._book
                made = await asyncio.to_thread(self.opener.version, found, state, entries, limits)
            except Refused as refused:
                async with self._lock:
                    await self._apply(SumSpoilt(refused.detail))
            else:
                return made, tuple(self._state.survivors)
        log.error("secure_round_has_no_result", round=round_, why=self._state.why)
        return state, ()

    async def _close_round(self, round_: int, entries: Sequence[AcceptedUpdate]) -> None:
        """Fix the survivors, or give the attempt up before anybody was asked for shares."""
        attempt, base = self._attempt, self.rounds().manifest
        if attempt is None or (attempt.round, attempt.base) != (round_, base):
            raise _unusable(entries, "the keys of this round's masks were lost")
        if self._state.phase is SecurePhase.MASKED:
            for entry in entries:
                if entry.device in self._state.going and self._state.phase is SecurePhase.MASKED:
                    await self._apply(MaskedCame(entry.device))
            if self._state.phase is SecurePhase.MASKED:
                self._state = self._state.model_copy(update={"closes": self.now()})
                await self._apply(StageTick())
        if self._state.phase in {SecurePhase.KEYS, SecurePhase.SHARES}:
            raise _unusable(entries, "the masks of this round were never agreed on")
        if self._state.phase is SecurePhase.FAILED and not self._state.survivors:
            raise _unusable(entries, self._state.why)

    async def _follow(self, lose: Lose) -> None:
        """Begin the attempt that the round machine has opened; let time pass in one that is open."""
        rounds = self.rounds()
        if rounds.phase is not RoundPhase.COLLECTING:
            return
        wanted = Attempt(self.fleet, self.task, rounds.round, rounds.attempt, rounds.manifest, rounds.salt)
        if wanted == self._attempt:
            if self._state.phase in {SecurePhase.KEYS, SecurePhase.SHARES}:
                async with self._lock:
                    await self._apply(StageTick())
            return
        async with self._lock:
            self._state = given_up(self._state, rounds.delivered)
            await self._report()
            self._begin(wanted, rounds)
            await self._report()
        if old := tuple(rounds.delivered.unsorted()):
            words = "masked for an earlier attempt of the round"
            await lose(rounds.round, UnusableUpdates(dict.fromkeys(old, Refused(Reason.WRONG_ROUND, words))))

    def _begin(self, attempt: Attempt, rounds: RoundState) -> None:
        now = self.now()
        left = max(0.0, (rounds.until or now) - now)
        self._attempt, self._asked = attempt, rounds.selected
        self._rules = self._rules_of(attempt, left)
        self._book = AttemptBook(attempt, self.authority)
        self._state = SecureState(expected=len(rounds.selected), closes=now + _KEYS_SHARE * left)
        log.info("secure_attempt", round=attempt.round, attempt=attempt.attempt, devices=len(rounds.selected))

    def _rules_of(self, attempt: Attempt, left: float) -> SecureRules:
        times = {"stage_s": _STAGE_SHARE * left, "masked_s": 10 * left}
        return SecureRules(self.options, attempt.digest, **times, noise=self.noise)

    async def _apply(self, event: SecureEvent) -> None:
        """Apply an event; the end of a stage is stored before it is announced."""
        state, commands = apply(self._rules, self._state, event, self.now())
        if state.phase is not self._state.phase:
            await asyncio.to_thread(self.file.write, self._rules, state, self._book)
            log.info("secure_stage", stage=state.phase.value, going=len(state.going), why=state.why)
        changed, self._state = state.phase is not self._state.phase, state
        if changed:
            await self._report()
        for command in commands:
            await self._act(command)

    async def _report(self) -> None:
        """Tell people how the attempt stands; a disk that is full delays nothing."""
        if self.reports is None or self._attempt is None:
            return
        report = report_of(self._attempt, self._state, self._asked or self._state.joined)
        try:
            await asyncio.to_thread(self.reports.write, self._attempt.round, report, self.clock.wall())
        except LichenError as error:
            log.warning("secure_round_not_reported", why=str(error))

    async def _act(self, command: SecureCommand) -> None:
        state, book = self._state, self._book
        match command:
            case SendRosters():
                await self._send([(one, book.roster_for(state, one)) for one in state.joined])
            case SendShares():
                await self._send([(one, book.shares_for(state, one)) for one in state.going])
            case AskForShares() | OpenSum():
                pass  # `fold` asks, and opens

    async def _ask(self) -> None:
        left = [one for one in self._state.survivors if one not in self._state.revealed]
        await self._send([(one, self._book.survivors_for(self._state, one)) for one in left])

    async def _send(self, messages: Sequence[tuple[str, SecureMessage]]) -> None:
        """Publish; what does not arrive is asked for again."""
        for start in range(0, len(messages), _AT_ONCE):
            part = messages[start : start + _AT_ONCE]
            topics = [device_topic(self.fleet, device, Kind.RECEIPT) for device, _ in part]
            sends = [
                self.link.publish(topic, encode(message))
                for topic, (_, message) in zip(topics, part, strict=True)
            ]
            failed = [one for one in await asyncio.gather(*sends, return_exceptions=True) if one is not None]
            for error in failed:
                if not isinstance(error, LichenError):
                    raise error
            if failed:  # no connection, or too large for the broker; devices ask again
                log.warning("secure_messages_not_sent", count=len(failed), why=str(failed[0]))

    def _load(self) -> None:
        """The attempt on the disk, if any."""
        if found := self.file.read():
            rules, self._state, self._book = found
            self._rules = replace(rules, noise=self.noise)
            self._attempt, now = self._book.attempt, self.rounds()
            if (now.round, now.attempt) == (self._attempt.round, self._attempt.attempt):
                self._asked = now.selected


def _unusable(entries: Sequence[AcceptedUpdate], why: str) -> UnusableUpdates:
    return UnusableUpdates({entry.device: Refused(Reason.WRONG_ROUND, why) for entry in entries})
