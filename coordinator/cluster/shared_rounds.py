"""The rounds as a process sees them that accepts updates and does not lead."""

from collections.abc import Iterable, Sequence
from typing import Final

from coordinator.admission.quarantine import OFFENCES
from coordinator.cluster.known_devices import KnownDevices
from coordinator.cluster.round_replica import RoundReplica
from coordinator.intake.intake_table import IntakeTable, intake_of
from coordinator.round_machine.batch import Key, ReceivedUpdate, check_update
from coordinator.round_machine.events import RoundState
from coordinator.storage.update_journal import Journal
from protocol.errors import Reason, Refused, Transient
from runtime.clock import Clock
from runtime.concurrency.threads import Threads

_TRIES: Final = 3


class AcceptedHere:
    """The updates that this process accepted in the open round, and the table of all processes'."""

    def __init__(self, replica: RoundReplica, journal: Journal, threads: Threads) -> None:
        self._replica, self._journal, self._threads = replica, journal, threads
        self._round = -1
        self._digests: dict[str, str] = {}

    def has(self, device: str, digest: str) -> bool:
        """Whether exactly this update was accepted here in the open round."""
        # the next round may have been opened since: a receipt names the round of its update
        return self._replica.state.round == self._round and self._digests.get(device) == digest

    async def digests(self, keys: Iterable[Key]) -> dict[Key, str]:
        """The digests that these devices delivered in these rounds, wherever they were accepted.

        Raises:
            Transient: the database cannot be read now.
        """
        return await self._threads.run(self._journal.digests, keys)

    def follow(self, round_: int, group: Iterable[ReceivedUpdate]) -> None:
        """Remember accepted updates; those of an earlier round are forgotten."""
        if round_ != self._round:
            self._round, self._digests = round_, {}
        self._digests |= {one.header.device: one.digest for one in group if one.header.round == round_}


class SharedRounds:
    """What :class:`coordinator.ingest.update_receiver.UpdateReceiver` needs of the rounds.

    Args:
        replica: of the leader's round machine.
        table: takes accepted updates.
        journal: of accepted updates.
        devices: the registered ones.
        threads: for commits alone.
        clock: the time.
    """

    def __init__(
        self,
        *,
        replica: RoundReplica,
        table: IntakeTable,
        journal: Journal,
        devices: KnownDevices,
        threads: Threads,
        clock: Clock,
    ) -> None:
        self._replica, self._table, self._devices, self._clock = replica, table, devices, clock
        self.threads = threads
        self.accepted = AcceptedHere(replica, journal, threads)

    @property
    def state(self) -> RoundState:
        """Of the leader's round machine, at most a moment old."""
        return self._replica.state

    async def refresh(self, device: str, judged: RoundState) -> bool:
        """Read again what updates are judged by; whether one that was judged by that state may fare better.

        Not whether something new was read: another update of the same moment may have read it just before.
        """
        unknown = device not in self._devices
        await self._devices.look_up(device)
        await self._replica.refresh()
        return self.state is not judged or (unknown and device in self._devices)

    async def accept_all(self, group: Sequence[ReceivedUpdate]) -> tuple[Refused | None, ...]:
        """Write updates whose frames are on disk, in one transaction; the leader counts them.

        Returns:
            For each None: it is in the journal and synced, and the round will count it; or why not.

        Raises:
            Transient: the database failed, or the round is being closed; none of them is accepted.
        """
        for _ in range(_TRIES):
            known = await self.accepted.digests({one.key for one in group})
            fresh, answers = _judged(self.state, group, known)
            if not fresh:
                return tuple(answers.get(one.key) for one in group)
            expected, wall = intake_of(self.state), self._clock.wall()
            counts = await self.threads.run(self._table.accept, expected, fresh, wall)
            if counts is not None:
                self.accepted.follow(expected.round, [one for one in fresh if counts[one.key] == one.digest])
                for one in fresh:
                    if counts[one.key] != one.digest:
                        answers[one.key] = _other(one)
                return tuple(answers.get(one.key) for one in group)
            await self._replica.refresh()
        raise Transient(f"round {self.state.round} is being closed")

    async def refuse(self, device: str, round_: int, reason: Reason) -> None:
        """An update of this device was refused; if the same bytes would be again, the round need not wait."""
        state = self.state
        if reason in OFFENCES and round_ == state.round and state.asks(device):
            await self.threads.run(self._table.spoil, round_, device, reason.value)


def _judged(
    state: RoundState, group: Sequence[ReceivedUpdate], known: dict[Key, str]
) -> tuple[list[ReceivedUpdate], dict[Key, Refused]]:
    """The updates that may be accepted, and why the others may not."""
    fresh, refusals = [], {}
    for one in group:
        try:
            if not check_update(state, one, known):
                fresh.append(one)
        except Refused as refused:
            refusals[one.key] = refused
    return fresh, refusals


def _other(one: ReceivedUpdate) -> Refused:
    round_, device = one.key
    return Refused(Reason.DUPLICATE, f"{device} already delivered another update in round {round_}")
