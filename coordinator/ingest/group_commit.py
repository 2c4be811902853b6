"""Group commit: accepted updates are written together that arrived during the last write.

An update alone costs three syncs (its file, the file's folder, the transaction), and so does a group of a
hundred: waiting updates are written as one file and counted in one transaction. No update waits for others:
if the disk is idle it is written at once. It is answered only when the transaction is on disk.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from coordinator.ingest.round_access import RoundAccess
from coordinator.round_machine.batch import ReceivedUpdate, check_update
from coordinator.storage.update_journal import Journal
from protocol.errors import Refused, Transient
from protocol.frames.headers import UpdateHeader
from runtime.text import first_few

log = structlog.get_logger(__name__)

MOST: Final = 256
MOST_BYTES: Final = 8 * 1024 * 1024
"""Limit of one group, unless a single update is larger; the rest waits for the next."""


@dataclass(eq=False)
class _PendingUpdate:
    offered: ReceivedUpdate
    payload: bytes
    answer: "asyncio.Future[None]"


class GroupCommit:
    """For use from one event loop."""

    def __init__(self, driver: RoundAccess, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._queue: list[_PendingUpdate] = []
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self.groups = 0
        self.largest = 0

    async def accept(
        self, header: UpdateHeader, digest: str, payload: bytes, blobs: tuple[str, ...] = ()
    ) -> None:
        """Write and count an update; on return it is in the journal and synced.

        Args:
            header: checked.
            digest: of the frame.
            payload: the frame.
            blobs: names of the blobs that it changes.

        Raises:
            Refused: the round closed meanwhile, or the device was not selected or delivered another update.
            Transient, OSError: the disk failed; nothing was counted.
        """
        answer = asyncio.get_running_loop().create_future()
        mine = _PendingUpdate(ReceivedUpdate(header, digest, len(payload), blobs=blobs), payload, answer)
        self._queue.append(mine)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        try:
            await answer
        finally:
            if answer.cancelled() and mine in self._queue:
                self._queue.remove(mine)

    async def _write_all(self) -> None:
        """Write groups until nothing waits."""
        try:
            while self._queue:
                async with self._writing:
                    await self._write(self._take())
        finally:
            self._writer = None

    def _take(self) -> list[_PendingUpdate]:
        size = count = 0
        for one in self._queue[:MOST]:
            size += one.offered.size
            if count and size > MOST_BYTES:
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _write(self, group: list[_PendingUpdate]) -> None:
        """Write a group and answer it; an error of the disk goes to all of it."""
        self.groups += 1
        self.largest = max(self.largest, len(group))
        try:
            await self._settle(group)
        except Exception as error:  # noqa: BLE001 - the callers', whatever it is
            for one in group:
                _answer(one, error)
        finally:
            for one in group:  # only if the writing was interrupted: no caller may wait for ever
                _answer(one, Transient("the writing of the update was cut off"))

    async def _settle(self, group: list[_PendingUpdate]) -> None:
        fresh = await self._sorted_out(group)
        if not fresh:
            return
        round_ = fresh[0][0].offered.header.round
        frames = [(one.offered.digest, one.payload) for one, *_ in fresh]
        places = await self._driver.threads.run(self._journal.write_all, round_, frames)
        offered = [
            replace(one.offered, file=file, at=at)
            for (one, *_), (file, at) in zip(fresh, places, strict=True)
        ]
        answers = await self._driver.accept_all(offered)
        _say([one for one, answer in zip(offered, answers, strict=True) if answer is None])
        for same, answer in zip(fresh, answers, strict=True):
            if answer is not None:  # the round closed between the two: the frame is on disk, but not counted
                await self._driver.threads.run(self._journal.mark_void, round_, same[0].offered.digest)
            for one in same:
                _answer(one, answer)

    async def _sorted_out(self, group: Sequence[_PendingUpdate]) -> list[list[_PendingUpdate]]:
        """The updates that may count, as far as known before writing; the others are answered.

        Copies of one update form one list.
        """
        state = self._driver.state
        known = await self._driver.accepted.digests({one.offered.key for one in group})
        fresh: dict[tuple[int, str], list[_PendingUpdate]] = {}
        for one in group:
            key = one.offered.key
            try:
                if key in fresh and known[key] == one.offered.digest:
                    fresh[key].append(one)
                elif check_update(state, one.offered, known):
                    _answer(one, None)
                else:
                    known[key] = one.offered.digest
                    fresh[key] = [one]
            except Refused as refused:
                _answer(one, refused)
        return list(fresh.values())


def _say(counted: Sequence[ReceivedUpdate]) -> None:
    """One line for a group, not one for each update."""
    if counted:
        devices = first_few([one.header.device for one in counted])
        size = sum(one.size for one in counted)
        log.info("accepted", round=counted[0].header.round, count=len(counted), size=size, devices=devices)


def _answer(one: _PendingUpdate, error: Exception | None) -> None:
    """The first answer stays."""
    if one.answer.done():
        return
    if error is None:
        one.answer.set_result(None)
        return
    one.answer.set_exception(error)
    one.answer.exception()  # the caller was cancelled meanwhile
