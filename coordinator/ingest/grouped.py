"""Grouped work in threads: what arrives while a group is worked on forms the next one.

A hop to a thread costs as much as the work for one small update, so a group shares it. Nothing waits for a
group to fill: if no turn is taken, a single item is a group.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from protocol.errors import Transient

MOST: Final = 64
MOST_BYTES: Final = 1024 * 1024
"""Limit of one group, unless a single item is larger: an item waits for no more than this."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    size: int
    answer: "asyncio.Future[Result]"
    taken: bool = False


class Grouped(Generic[Item, Result]):
    """For use from one event loop.

    Args:
        work: for one item; runs in a thread. What it raises is the answer to this item alone.
        turns: groups that are worked on at a time.
    """

    def __init__(self, work: Callable[[Item], Result], turns: int) -> None:
        self._work = work
        self._queue: list[_Waiting[Item, Result]] = []
        self._turns = turns
        self.taken = 0
        """Turns that are taken."""
        self._workers: set[asyncio.Task[None]] = set()
        self.groups = 0

    async def do(self, item: Item, size: int) -> Result:
        """Work on an item of so many bytes; raises what the work raises."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        mine = _Waiting(item, size, answer)
        self._queue.append(mine)
        if self.taken < self._turns:
            self.taken += 1
            worker = asyncio.create_task(self._work_off())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        try:
            return await answer
        finally:
            if not mine.taken:  # its caller was cancelled
                self._queue.remove(mine)

    async def _work_off(self) -> None:
        """Work on groups until nothing waits. No waiting caller is woken before its answer is here."""
        try:
            while self._queue:
                await self._work_on(self._take())
        finally:
            self.taken -= 1

    def _take(self) -> list[_Waiting[Item, Result]]:
        size = count = 0
        for one in self._queue[:MOST]:
            size += one.size
            if count and size > MOST_BYTES:
                break
            one.taken = True
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _work_on(self, group: Sequence[_Waiting[Item, Result]]) -> None:
        self.groups += 1
        try:
            found = await asyncio.to_thread(self._all, [one.item for one in group])
            for one, (result, error) in zip(group, found, strict=True):
                _answer(one.answer, result, error)
        except Exception as error:  # noqa: BLE001 - of the work: it is the callers' error, not ours
            for one in group:
                _answer(one.answer, None, error)
        finally:
            cut = Transient("the work on the update was cut off")  # no caller may wait for ever
            for one in group:
                _answer(one.answer, None, cut)

    def _all(self, items: Sequence[Item]) -> "list[tuple[Result | None, Exception | None]]":
        found: list[tuple[Result | None, Exception | None]] = []
        for item in items:
            try:
                found.append((self._work(item), None))
            except Exception as error:  # noqa: BLE001 - of this item: the others of its group are checked
                found.append((None, error))
        return found


def _answer(answer: "asyncio.Future[Result]", result: Result | None, error: Exception | None) -> None:
    """The first answer stays."""
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
        answer.exception()  # the caller was cancelled meanwhile
    else:
        answer.set_result(result)  # type: ignore[arg-type]  # the work's own result, which may be None
