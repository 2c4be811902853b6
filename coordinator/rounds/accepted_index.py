"""Index of accepted updates of the open round, in memory: each arriving update is compared with it."""

from collections.abc import Iterable, Mapping

from coordinator.round_machine.batch import Key
from coordinator.round_machine.events import Event, UpdatesLost
from coordinator.storage.update_journal import Journal
from runtime.concurrency.threads import Threads


class AcceptedIndex:
    """Digest by round and device: of the open round from memory, of earlier rounds from the journal.

    Args:
        journal: has all rounds.
        threads: in which it is read.
    """

    def __init__(self, journal: Journal, threads: Threads) -> None:
        self._journal = journal
        self._threads = threads
        self._round = 0
        self._digests: dict[str, str] = {}

    async def load(self, round_: int) -> None:
        """Read the round that is open at the start.

        Raises:
            Transient: the journal cannot be read now.
        """
        self._round, self._digests = round_, await self._threads.run(self._journal.digests_of, round_)

    def follow(self, round_: int, events: Iterable[Event], counted: Mapping[Key, str]) -> None:
        """Update the index after a transaction; a round that has just been opened has no updates yet.

        Args:
            round_: the open round.
            events: of the round machine.
            counted: updates that count from now on.
        """
        if round_ != self._round:
            self._round, self._digests = round_, {}
        self._digests |= {device: digest for (one, device), digest in counted.items() if one == round_}
        for event in events:
            if isinstance(event, UpdatesLost) and event.round == round_:
                for device in event.devices:
                    self._digests.pop(device, None)

    def has(self, device: str, digest: str) -> bool:
        """Whether exactly this update is accepted in the open round."""
        return self._digests.get(device) == digest

    async def digests(self, keys: Iterable[Key]) -> dict[Key, str]:
        """The digests that these devices delivered in these rounds, without withdrawn updates.

        Raises:
            Transient: the journal cannot be read now.
        """
        here, over = {}, set()
        for round_, device in keys:
            if round_ != self._round:
                over.add((round_, device))
            elif device in self._digests:
                here[round_, device] = self._digests[device]
        return here | await self._threads.run(self._journal.digests, over) if over else here
