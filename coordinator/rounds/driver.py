"""Runs the round machine: keeps its state and journal, applies events one by one, executes commands.

Order of durability: an event that changes the state is on disk before the state is used. One lock makes
events sequential, so an update is either counted before a round closes or refused after it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import structlog

from coordinator.admission.quarantine import OFFENCES
from coordinator.intake.intake_table import Arrivals
from coordinator.intake.outside_updates import OutsideUpdates, count
from coordinator.round_machine import table
from coordinator.round_machine.batch import Key, ReceivedUpdate, accept_batch
from coordinator.round_machine.commands import (
    Aggregate,
    Command,
    Evaluate,
    Export,
    Finish,
    Initialise,
    OfferRound,
    RecordAttempt,
    Select,
)
from coordinator.round_machine.events import (
    Begin,
    Checkpoint,
    DeviceOnline,
    EndRounds,
    Event,
    Presence,
    Resumed,
    RoundPhase,
    RoundState,
    RoundTick,
    Rules,
    Selected,
    UpdateRefused,
)
from coordinator.round_machine.queries import replay
from coordinator.rounds.accepted_index import AcceptedIndex
from coordinator.rounds.attempt_log import Attempts
from coordinator.rounds.fleet_watch import Lookout
from coordinator.rounds.outlook import RoundView
from coordinator.rounds.progress import explain, round_metrics
from coordinator.selection.selector import DeviceSelector
from coordinator.storage.database import Database
from coordinator.storage.update_journal import Journal
from protocol.errors import Reason, Refused, Transient
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.concurrency.threads import Threads
from runtime.metrics import MetricFamily
from runtime.text import MAX_NAMES

TICK_S: Final = 0.5
_EVENTS: Final = 2000  # events of one long phase, after which a checkpoint is written
Write = Callable[[], None]
Steps = Sequence[tuple[Event, Write | None]]
"""Events, each with the writes for its transaction."""
WorkCommand = Initialise | Aggregate | Evaluate | Export

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class RoundDriver:
    """The running machine. Call :meth:`open`, then :meth:`run`.

    Args:
        store, journal: hold the machine's events, and the updates.
        fleet: the devices that a round could select.
        chooser: selects among them.
        changes: set when the state has changed.
        offers: set when the offer of the round may have to change.
        outside: updates that other processes accept; None: there are no others.
    """

    task: Task
    rules: Rules
    store: Database
    journal: Journal
    fleet: RoundView
    chooser: DeviceSelector
    changes: Signal
    offers: Signal
    clock: Clock
    outside: OutsideUpdates | None = None

    def __post_init__(self) -> None:
        self.state = RoundState()
        self.finished = asyncio.Event()
        self.work: asyncio.Queue[WorkCommand] = asyncio.Queue()
        """One command at a time: the machine asks for the next only when the last is answered."""
        self._attempts = Attempts(self.store, self.clock)
        self._lock, self._journaled = asyncio.Lock(), 0
        self.threads = Threads("journal", 2)
        """For commits alone: they must not wait for other work in threads (hashing, decoding, backups)."""
        self.accepted = AcceptedIndex(self.journal, self.threads)
        self._offset = self.clock.wall() - self.clock.now()
        self._lookout = Lookout(self.fleet, self.rules.spread_s, self.now())
        self._trouble_said, self._disk_trouble = False, ""
        """Why the last event could not be written; empty if it could."""

    def now(self) -> float:
        """Seconds on a line that starts at the wall clock and is monotonic from then on."""
        return self.clock.now() + self._offset

    def why(self) -> str:
        """What the coordinator waits for, as text."""
        seen = self.fleet.outlook(self.state, self._disk_trouble)
        return explain(self.rules, self.state, self.now(), seen)

    def able(self) -> tuple[str, ...]:
        """Devices that a round could select now."""
        return self.fleet.able(self.state)

    async def open(self) -> None:
        """Rebuild the state from the journal, and repeat the command that was running."""
        async with self._lock:
            events = await self.threads.run(self.store.journal)
            state, rules = replay(events)
            start: Event = Resumed() if events else Begin()
            self.state, commands = table.apply(self.rules, state, start, self.now())
            await self.accepted.load(self.state.round)
            # The task file's rules may have changed: the new ones apply from here on, also in a replay.
            begun = Checkpoint(state=self.state, rules=self.rules)
            await self.threads.run(self.store.append, begun, self.now())
            if self.outside:
                await self._reopen(self.outside)
            if rules is not None and rules != self.rules:
                log.warning("rules_changed", old=rules.model_dump(), new=self.rules.model_dump())
            now = self.state
            log.info("round_machine_open", phase=now.phase, round=now.round, replayed=len(events))
            await self._carry_out(commands)

    async def run(self) -> None:
        """Let time pass."""
        while True:
            try:
                await self._look_at_missing()
                await self.post(self._tick())
            except Transient as error:
                log.warning("not_journaled", why=str(error))
            self._look_at_broker()
            await self.clock.sleep(TICK_S)

    async def _look_at_missing(self) -> None:
        """Report to the machine whether the devices that an open round waits for are all offline."""
        state = self.state
        # Without a broker no device is heard.
        if state.phase is RoundPhase.COLLECTING and self.fleet.link.connected:
            await self.post(Presence(here=self.fleet.has_any(state.each_missing())))

    def _look_at_broker(self) -> None:
        trouble = bool(self.fleet.broker_trouble())
        if trouble != self._trouble_said:
            self._trouble_said = trouble
            log.info("round", why=self.why())
            self.changes.set()

    def _tick(self) -> RoundTick:
        return self._lookout.tick(self.now(), self.state)

    async def post(self, event: Event, write: Write | None = None) -> bool:
        """Apply an event; ``write`` joins its transaction. False: it changed nothing and was not written."""
        async with self._lock:
            return await self._post(event, write)

    async def device_online(self, device: str, *, came: bool = False) -> None:
        """A device came online: it may be able to take part, or may have been the missing one."""
        async with self._lock:
            await self._post(DeviceOnline(device=device, came=came))

    async def accept_all(self, group: Sequence[ReceivedUpdate]) -> tuple[Refused | None, ...]:
        """Count updates whose frames are on disk, in order and in one transaction.

        Returns:
            For each None: it is in the journal and synced; or why not: the round closed meanwhile, or the
            device was not selected or delivered another update.

        Raises:
            Transient: the disk failed; none of them is counted.
        """
        async with self._lock:
            known = await self.accepted.digests({one.key for one in group})
            now, wall = self.now(), self.clock.wall()
            found = accept_batch(self.rules, self.state, group, known, now)
            write = partial(self.journal.record_all, found.counted, wall)
            steps = [] if found.event is None else [(found.event, write)]
            counted = {one.key: one.digest for one in found.counted}
            await self._advance(steps, found.state, now, found.commands, counted)
            return found.answers

    async def count_outside(self) -> tuple[str, ...]:
        """Count what other processes accepted, and return the devices. Raises as :meth:`post`."""
        async with self._lock:
            outside, state = self.outside, self.state
            found = await self.threads.run(outside.arrivals, state) if outside else Arrivals()
            if not outside or not found:
                return ()
            ends = outside.ends(state, count(self.rules, state, found, self.now()).state)
            found = await self._count(outside, None if ends else found)
            await self._reopen(outside)
            return found.accepted

    async def _count(self, outside: OutsideUpdates, found: Arrivals | None = None) -> Arrivals:
        """Count what was found; None: let nothing more be accepted, and count the rest."""
        arrivals = await self.threads.run(outside.close, self.state) if found is None else found
        now, known = self.now(), partial(outside.known, self.state, arrivals)
        counted = count(self.rules, self.state, arrivals, now)
        steps: list[tuple[Event, Write | None]] = [(event, None) for event in counted.events]
        if steps:
            steps[-1] = (counted.events[-1], known)
            await self._advance(steps, counted.state, now, counted.commands, {})
        elif arrivals:  # the round machine knew it
            await self.threads.run(known)
        return arrivals

    async def _reopen(self, outside: OutsideUpdates) -> None:
        """Let other processes accept updates as the state says: an expected end may not have come."""
        outside.held = False
        if outside.differs(self.state):
            await self.threads.run(outside.write, self.state)
            outside.wrote(self.state)

    async def refresh(self, _device: str, _judged: RoundState) -> bool:
        """Nothing: this is the round machine."""
        return False

    async def end_rounds(self, why: str) -> None:
        """An operator ended the rounds; nothing if they have ended. Raises as :meth:`post`."""
        if not self.state.ended and self.state.phase is not RoundPhase.DONE:
            await self.post(EndRounds(why=why))

    async def refuse(self, device: str, round_: int, reason: Reason) -> None:
        """An update of this device was refused; if the same bytes would be again, do not wait for it."""
        if reason in OFFENCES:
            await self.post(UpdateRefused(device=device, round=round_, reason=reason.value))

    async def _post(self, event: Event, write: Write | None = None) -> bool:
        if outside := self.outside:
            outside.held = False
            while not outside.held and outside.ended_by(event, self.rules, self.state, self.now()):
                await self._count(outside)
            outside.held = False  # from here on the event is written without a pause
        now, before = self.now(), self.state
        state, commands = table.apply(self.rules, before, event, now)
        await self._advance([(event, write)] if state is not before else [], state, now, commands, {})
        if outside:
            await self._reopen(outside)
        return state is not before

    async def _advance(
        self,
        steps: Steps,
        state: RoundState,
        now: float,
        commands: tuple[Command, ...],
        counted: Mapping[Key, str],
    ) -> None:
        """Write events that changed something, then use the new state."""
        new_phase = False
        if steps:
            await self._write(steps, state, now, commands)
            before, self.state = self.state, state
            if self.outside:
                self.outside.wrote(state)
            self.accepted.follow(state.round, [event for event, _ in steps], counted)
            new_phase = _phase_of(before) != _phase_of(state)
            if new_phase:  # not for each event: the sentence looks at the whole fleet
                log.info("round", why=self.why())
                self.offers.set()
            self.changes.set()
        await self._carry_out(commands)
        if new_phase and state.phase is RoundPhase.WAITING:
            await self._post(self._tick())  # the next round need not wait for the clock

    async def _write(
        self, steps: Steps, state: RoundState, now: float, commands: tuple[Command, ...]
    ) -> None:
        """Store an error of the disk, for :meth:`explain`, until an event could be written."""
        before, self._disk_trouble = self._disk_trouble, ""
        try:
            await self.threads.run(self._persist, steps, state, now, commands)
        except Transient as error:
            self._disk_trouble = str(error)
            if not before:
                self.changes.set()
            raise

    def _persist(self, steps: Steps, state: RoundState, now: float, commands: tuple[Command, ...]) -> None:
        """Write the events and everything that belongs to them in one transaction."""
        with self.store.transaction():
            for event, write in steps:
                self.store.append(event, now)
                if write is not None:
                    write()
            if self.outside and self.outside.differs(state):
                self.outside.write(state)
            for command in commands:
                if isinstance(command, RecordAttempt):
                    self._attempts.closed(command)
            over = state.phase is RoundPhase.WAITING and self.state.phase is not RoundPhase.WAITING
            over = over or state.ended != self.state.ended  # releases that do not know the event read this
            self._journaled += len(steps)
            if over or self._journaled >= _EVENTS:  # earlier events need not be replayed, nor kept for ever
                self._journaled = 0
                self.store.append(Checkpoint(state=state, rules=self.rules), now)

    async def _carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Select():
                    await self._select(command)
                case OfferRound():
                    self.offers.set()
                case Finish():
                    self.finished.set()
                case Initialise() | Aggregate() | Evaluate() | Export():
                    self.work.put_nowait(command)
                case RecordAttempt():
                    pass  # written with its event

    async def _select(self, command: Select) -> None:
        chosen = await self.chooser.choose(command, self.able(), self.state, self.fleet.terms())
        answer = Selected(
            round=command.round,
            attempt=command.attempt,
            devices=chosen.devices,
            salt=chosen.salt,
            below=chosen.below,
        )
        if await self._post(answer, partial(self._attempts.opened, command, chosen)):
            few = dict(islice(sorted(chosen.why.items()), MAX_NAMES))
            log.info("selected", round=command.round, attempt=command.attempt, count=len(chosen.why), why=few)

    def metrics(self) -> Iterable[MetricFamily]:
        """Where the round stands."""
        return round_metrics(self.state)


def _phase_of(state: RoundState) -> tuple[RoundPhase, int, int]:
    return state.phase, state.round, state.attempt
