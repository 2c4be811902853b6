"""Takes part in secure rounds: announces keys, masks, and tells shares (docs/secure-aggregation.md).

The state is one atomic file, written before anything is sent. The update itself is only in memory until it is
masked: after a restart the device trains again, with the same seed, and goes on in the same attempt. The
masked update then is an ordinary one of the outbox.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import cbor2
import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.files import folder_of
from edge_agent.ports import TaskLink
from edge_agent.secure_aggregation import noise_account, record
from edge_agent.secure_aggregation.events import (
    IDLE,
    AttemptEnded,
    DeliveryCame,
    MaskingCommand,
    MaskingEvent,
    MaskingInvited,
    MaskingPhase,
    MaskingResumed,
    MaskingRules,
    MaskUpdate,
    RosterCame,
    SendMasked,
    SurvivorsCame,
    Tell,
    UpdateMasked,
)
from edge_agent.secure_aggregation.masking import masked_vector
from edge_agent.secure_aggregation.noise_account import NoiseAccount, fewest_devices
from edge_agent.secure_aggregation.table import apply
from edge_agent.secure_aggregation.transitions import mask_plan
from models.privacy.accountant import releases_within
from models.privacy.shared_noise import SharedNoise, shared_noise
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import authority_of, signer_of
from protocol.secure_aggregation.keys import NONCE_BYTES, Secrets
from protocol.secure_aggregation.messages import Roster, SharesDelivered, Survivors, decode, encode
from protocol.secure_aggregation.ring import Words
from protocol.secure_aggregation.updates import masked_frame
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task
from protocol.topics import Kind, Route, device_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.storage.files import write_atomic
from runtime.waits import StatusPart, StatusText, Wait

_log = structlog.get_logger(__name__)
FILE: Final = "secure_round.cbor"
_REPEATED: Final = frozenset({MaskingPhase.KEYS, MaskingPhase.SHARES, MaskingPhase.MASKING})
"""Phases in which the coordinator owes an answer: what was said last is said again."""
_MOST_SUMS: Final = 1_000_000
Submit = Callable[[bytes, Offer], Awaitable[None]]
"""Stores the frame of the masked update in the outbox, as the answer to an offer."""


@dataclass(eq=False)
class _Job:
    """An update that is ready: its vector, and where the masked one goes."""

    offer: Offer
    task: Task
    vector_N: Words
    submit: Submit
    route: Mapping[str, Any] | None = None
    frame: bytes = b""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    refused: Refused | None = None
    """Why it is not masked after all."""


@dataclass(eq=False, repr=False)
class MaskingService(StatusPart):
    """One service.

    Args:
        settings: of the agent.
        link: to the coordinator.
        clock: of repetitions.
        learning: the learner's status.
    """

    settings: AgentSettings
    link: TaskLink
    clock: Clock
    learning: StatusText

    def __post_init__(self) -> None:
        self._file = self.settings.state_dir / FILE
        limit, delta = self.settings.privacy.max_epsilon, self.settings.learn.dp_delta
        self._account = NoiseAccount(self.settings.device_dir / noise_account.FILE, limit, delta)
        self._spent: dict[str, Any] = {}
        self._state, self._rules = IDLE, MaskingRules(self.settings.device, SecureAggregation())
        self._job: _Job | None = None
        self._newer: Offer | None = None
        self._lock, self._news = asyncio.Lock(), Signal()
        self._loaded = asyncio.Event()
        self.refused = ""
        """The last refusal of a message, in words."""

    def status(self) -> dict[str, Any]:
        """The stage of the present attempt; nothing before the first."""
        attempt = self._state.attempt
        if attempt is None and not self.refused and not self._spent:
            return {}
        words = "none" if attempt is None else f"{attempt.words}: {self._state.phase.value}"
        told = {"stage": words, "neighbours": len(self._state.keys), "refused": self.refused}
        return {"secure_round": told | ({"noise_account": self._spent} if self._spent else {})}

    def waits(self) -> Iterator[Wait]:
        """The wait for the coordinator's answer."""
        attempt = self._state.attempt
        if attempt is not None and self._job is not None and self._state.phase in _REPEATED:
            words = f"{attempt.words}: {self._state.phase.value.replace('_', ' ')}"
            yield Wait("secure round", words, None, None, "it is said again, or the round closes without it")

    async def take_part(
        self,
        offer: Offer,
        task: Task,
        vector_N: Words,
        submit: Submit,
        route: Mapping[str, Any] | None = None,
    ) -> None:
        """Take part in the round of an offer, until the masked update is in the outbox.

        Args:
            offer: of the round.
            task: with ``secure_aggregation``.
            vector_N: the update as elements of the ring.
            submit: stores the frame of the masked update.
            route: of a routed method, what determines this device's bundle; it is not masked.

        Raises:
            LichenError: the device may not take part, or its identity cannot be read.
        """
        await self._loaded.wait()
        self._rules = await asyncio.to_thread(self._rules_of, task)
        self._job = job = _Job(offer, task, vector_N, submit, route)
        self._news.set()
        try:
            await self._invite(offer)
            await job.done.wait()
            if job.refused is not None:
                raise job.refused
        finally:
            if self._job is job:
                self._job = None

    def refusal(self, task: Task) -> str:
        """Why this device can be in no further sum of a task; empty: it can, or adds no noise."""
        noise = shared_noise(task)
        return "" if noise is None else self._account.refusal(task.name, noise)

    def again(self, offer: Offer) -> None:
        """The offer came again: a new attempt needs new masks."""
        if self._job is not None and offer.attempt != self._job.offer.attempt:
            self._newer = offer
            self._news.set()

    async def on_answer(self, _route: Route, payload: bytes) -> None:
        """Handle a roster, shares or a list of survivors. Raises Refused, in words."""
        message = decode(payload, Roster, SharesDelivered, Survivors)
        await self._loaded.wait()
        attempt = self._state.attempt
        if attempt is None or message.attempt != attempt.digest:
            return  # of an attempt that is over
        event: MaskingEvent
        match message:
            case Roster():
                event = RosterCame(message, os.urandom(NONCE_BYTES * len(message.neighbours)))
            case SharesDelivered():
                event = DeliveryCame(message)
            case Survivors():
                event = SurvivorsCame(message)
            case _:
                return
        try:
            await self._apply(event)
        except Refused as refused:
            self.refused = refused.words
            self.learning.say(f"refused in a secure round: {refused.words}")
            _log.error("secure_message_refused", why=refused.words)
            raise

    async def run(self) -> None:
        """Say again what has no answer, for ever."""
        await asyncio.to_thread(self._load)
        self._loaded.set()
        while True:
            pause_s = None if self._job is None else self.settings.outbox.resend_s
            woken = await self._news.wait(pause_s, self.clock)  # an idle device does not wake up for this
            newer, self._newer = self._newer, None
            try:
                if newer is not None and self._job is not None:
                    self._job.offer, self._job.frame = newer, b""
                    await self._invite(newer)
                elif not woken and self._job is not None and self._state.phase in _REPEATED:
                    await self._apply(MaskingResumed())
            except (LichenError, OSError) as error:
                self.learning.say(f"secure round: {error}")
                _log.warning("secure_round_waits", why=str(error))

    async def _invite(self, offer: Offer) -> None:
        attempt = Attempt(self.settings.fleet, offer.task, offer.round, offer.attempt, offer.base, offer.salt)
        self.learning.say(f"announcing keys for {attempt.words}")
        await self._apply(MaskingInvited(attempt, os.urandom(Secrets.entropy_bytes)))

    async def _apply(self, event: MaskingEvent) -> None:
        async with self._lock:
            await self._advance(event)

    async def _advance(self, event: MaskingEvent) -> None:
        """Apply an event, store the state, and carry the commands out."""
        state, commands = await asyncio.to_thread(apply, self._rules, self._state, event)
        if state != self._state:
            options = self._rules.options.model_dump_json()
            noise = None if self._rules.noise is None else asdict(self._rules.noise)
            content = cbor2.dumps({"options": options, "state": record.to_bytes(state), "noise": noise})
            await asyncio.to_thread(write_atomic, self._file, content)
            self._state = state
        for command in commands:
            await self._act(command)

    async def _act(self, command: MaskingCommand) -> None:
        job, bits = self._job, self._rules.options.ring_bits
        match command:
            case Tell():
                topic = device_topic(self.settings.fleet, self.settings.device, Kind.UPDATE)
                try:
                    await self.link.publish(topic, encode(command.message))
                except LichenError as error:
                    _log.warning("secure_message_not_sent", why=str(error))
            case MaskUpdate() if job is not None:
                try:
                    await asyncio.to_thread(self._charge)
                except Refused as refused:
                    job.refused = refused
                    job.done.set()
                    await self._advance(AttemptEnded())
                    raise
                job.frame = await self._framed(job, command, bits)
                await self._advance(UpdateMasked(digest(job.frame)))
            case SendMasked() if job is not None and not job.done.is_set():
                if not job.frame:  # after a restart, from the same update
                    plan = mask_plan(self._rules, self._state)
                    job.frame = await self._framed(job, plan, bits)
                if digest(job.frame) != command.digest:
                    await self._advance(AttemptEnded())
                    raise Refused(
                        Reason.DUPLICATE,
                        f"round {job.offer.round}: another update is masked already in this attempt, and two "
                        "under the same masks could be read; this device waits for the next attempt",
                    )
                await job.submit(job.frame, job.offer)
                job.done.set()
            case _:
                pass  # the update is trained again, or is in the outbox

    def _charge(self) -> None:
        """Write into the account that this device may be in one more sum, if it adds noise."""
        attempt, noise, roster = self._state.attempt, self._rules.noise, self._state.roster
        if attempt is not None and noise is not None and roster is not None:
            fewest = fewest_devices(noise, len(roster.neighbours), roster.devices)
            self._account.charge(attempt, noise, fewest)
            self._spent = self._account.words()

    async def _framed(self, job: _Job, plan: MaskUpdate, bits: int) -> bytes:
        attempt = self._state.attempt
        if attempt is None:
            raise Transient("the attempt is over")
        packed = await asyncio.to_thread(masked_vector, job.vector_N, plan, bits)
        return masked_frame(attempt, job.task.method, self.settings.device, packed, job.route)

    def _rules_of(self, task: Task) -> MaskingRules:
        """With the identity, if the task wants one, and noise and limit of the task; raises as below."""
        rules, privacy, noise = self._permitted(task), task.privacy, shared_noise(task)
        if privacy is None or noise is None:
            return rules
        if privacy.max_epsilon is None:
            return replace(rules, noise=noise)
        return replace(rules, noise=noise, releases=releases_within(privacy, _MOST_SUMS, noise))

    def _permitted(self, task: Task) -> MaskingRules:
        """With the identity, if the task wants one.

        Raises:
            Refused: the task wants none, and this device's owner does not allow that.
            Misconfigured, Transient: the identity cannot be read.
        """
        options = task.secure_aggregation or SecureAggregation()
        if options.identities == "none" and not self.settings.secure_aggregation.without_identities:
            raise Refused(
                Reason.UNTRUSTED,
                f'task {task.name!r} wants no signed keys (secure_aggregation.identities = "none"): the '
                "coordinator could replace them and read this device's update. Its owner may allow that: "
                "[secure_aggregation] without_identities = true",
            )
        return self._identified(options)

    def _identified(self, options: SecureAggregation) -> MaskingRules:
        if options.identities == "none":
            return MaskingRules(self.settings.device, options)
        files = folder_of(self.settings.device_dir)
        try:
            authority, pair = files.authority.read_bytes(), files.pair.read_bytes()
        except FileNotFoundError:
            return MaskingRules(self.settings.device, options)  # refused by the machine, in words
        except OSError as error:
            raise Transient(f"{files.path}: {error}") from None
        return MaskingRules(self.settings.device, options, signer_of(pair), authority_of(authority))

    def _load(self) -> None:
        """The attempt on the disk; a damaged file is none."""
        try:
            self._spent = self._account.words()
        except LichenError as error:
            self._spent = {"account": str(error)}
            _log.error("noise_account_unreadable", why=str(error))
        try:
            content: dict[str, Any] = cbor2.loads(self._file.read_bytes())
            options = SecureAggregation.model_validate_json(content["options"])
            state = record.from_bytes(content["state"])
            noise = None if content.get("noise") is None else SharedNoise(**content["noise"])
        except FileNotFoundError:
            return
        except (OSError, cbor2.CBORDecodeError, ValueError, LookupError, TypeError) as error:
            _log.warning("secure_round_unreadable", file=str(self._file), why=str(error))
            return
        self._state, self._rules = state, MaskingRules(self.settings.device, options, noise=noise)
        try:  # a roster may come before the device has trained again
            self._rules = replace(self._identified(options), noise=noise)
        except LichenError as error:
            _log.error("identity_unreadable", why=str(error))
