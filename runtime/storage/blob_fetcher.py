"""Pulls blobs by ranges, through loss, repeats and disorder (docs/adr/0002-pull-by-fetch.md)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from protocol import messages
from protocol.errors import Refused, Transient
from protocol.messages import BlobRef
from protocol.topics import Kind, device_topic
from runtime.logs import LineRateLimiter
from runtime.storage.blob_store import BlobStore, Partial

_log = structlog.get_logger(__name__)
_MAX_STALL_S: Final = 30.0


class Publish(Protocol):
    """``Link.publish``."""

    async def __call__(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Return when the broker has it, else raise ``Transient``."""


class _News(Enum):
    """What a download is told besides chunks."""

    NO_SUCH_BLOB = "the peer has no such blob"
    CONNECTED = "what was asked for may be lost: ask again, at once"
    RESUMED = "what was asked for still comes; ask for what could not be asked for"


class _Pull:
    """One download that runs: chunks come in here, bounded, and are written by the task that fetches."""

    def __init__(self, window: int) -> None:
        self.arrived: asyncio.Queue[tuple[int, bytes] | _News] = asyncio.Queue(4 * window)


class Fetcher:
    """Pulls blobs chunk by chunk into a store; one download of a digest at a time, any number of digests.

    Args:
        publish: ``Link.publish``.
        fleet: for the topic.
        device: for the topic.
        store: where blobs and partial downloads live.
        chunk_bytes: size of chunks to ask for, or where to read it (``lambda: link.chunk_bytes``).
        window: chunks asked for and not yet here, at most.
        stall_s: without a new chunk for this long, what is missing is asked for again; doubles up to 30 s.
    """

    def __init__(
        self,
        publish: Publish,
        fleet: str,
        device: str,
        store: BlobStore,
        chunk_bytes: int | Callable[[], int],
        *,
        window: int = 4,
        stall_s: float = 5.0,
    ) -> None:
        self._publish = publish
        self._topic = device_topic(fleet, device, Kind.FETCH)
        self._store = store
        self._chunk_bytes = chunk_bytes if callable(chunk_bytes) else lambda: chunk_bytes
        self._window = window
        self._stall_s = stall_s
        self._pulls: dict[str, _Pull] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.ignored = 0
        """Chunks that nobody waited for, that came twice, or that did not fit."""
        self.asked = 0
        """Fetch messages sent."""
        self._sparing = LineRateLimiter()

    async def fetch(self, ref: BlobRef, timeout_s: float) -> Path:
        """The path of a verified blob, pulled unless it is here; a download that was cut off goes on.

        Raises:
            Transient: not complete in ``timeout_s``, or the peer has no such blob for now. What came stays.
            Refused: WRONG_DIGEST twice: the peer sends other bytes than it announced.
        """
        async with self._alone(ref.digest):
            if await asyncio.to_thread(self._store.has, ref.digest):
                return self._store.path(ref.digest)
            pull = self._pulls[ref.digest] = _Pull(self._window)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._complete(ref, pull)
            except TimeoutError:
                raise Transient(
                    f"blob {ref.digest} ({ref.size} bytes) was not here in {timeout_s:g} s"
                ) from None
            finally:
                del self._pulls[ref.digest]
        return self._store.path(ref.digest)

    def forget(self, digest: str) -> None:
        """Remove a blob that is not wanted any more, also where only a part of it came (touches the disk)."""
        self._store.remove(digest)

    def on_chunk(self, digest: str, index: int, data: bytes) -> None:
        """A chunk came on ``down/blob``. Never blocks; one too many is dropped and asked for again."""
        self._hand_over(digest, (index, data))

    def on_no_such_blob(self, digest: str) -> None:
        """The coordinator has no such blob, for now."""
        self._hand_over(digest, _News.NO_SUCH_BLOB)

    def on_connected(self, *, resumed: bool = False) -> None:
        """Connected (again): downloads that wait for chunks go on at once, not after their stall.

        Args:
            resumed: the broker kept our session, and with it the chunks that were on their way. Asking for
                them again would bring each twice; where they are lost all the same, the stall is the remedy.
        """
        for digest in self._pulls:
            self._hand_over(digest, _News.RESUMED if resumed else _News.CONNECTED)

    def _hand_over(self, digest: str, item: tuple[int, bytes] | _News) -> None:
        pull = self._pulls.get(digest)
        if pull is None or pull.arrived.full():
            self.ignored += 1
        else:
            pull.arrived.put_nowait(item)

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """One download of a digest at a time; who comes second finds it in the store."""
        lock = self._locks.setdefault(digest, asyncio.Lock())  # it lives while somebody holds it or waits
        async with lock:
            yield

    async def _complete(self, ref: BlobRef, pull: _Pull) -> None:
        partial = await asyncio.to_thread(self._store.partial, ref, self._chunk_bytes())
        for attempt in range(2):
            await self._pull(partial, pull)
            try:
                await asyncio.to_thread(partial.finish)
            except Refused as error:
                if attempt:
                    raise
                _log.warning("blob_damaged", error=error.detail)
            else:
                return

    async def _pull(self, partial: Partial, pull: _Pull) -> None:
        """Ask and take until every chunk is here."""
        waiting: set[int] = set()  # asked for, not here yet
        stall_s = self._stall_s
        while not partial.complete:
            if len(waiting) <= self._window // 2:
                await self._ask(partial, waiting)
            try:
                async with asyncio.timeout(stall_s):
                    item = await pull.arrived.get()
            except TimeoutError:
                waiting.clear()
                stall_s = min(2 * stall_s, _MAX_STALL_S)
                continue
            if item is _News.NO_SUCH_BLOB:
                raise Transient(f"the coordinator does not have blob {partial.ref.digest} (any more)")
            if isinstance(item, _News):
                if item is _News.CONNECTED:
                    waiting.clear()
                stall_s = self._stall_s
                continue
            if await self._take(partial, *item):
                stall_s = self._stall_s
            waiting.discard(item[0])

    async def _take(self, partial: Partial, index: int, data: bytes) -> bool:
        try:
            new = await asyncio.to_thread(partial.add, index, data)
        except Refused as error:
            if (unsaid := self._sparing.unsaid()) is not None:
                _log.warning("chunk_refused", blob=partial.ref.digest, error=error.detail, **unsaid)
            new = False
        self.ignored += not new
        return new

    async def _ask(self, partial: Partial, waiting: set[int]) -> None:
        """Ask for the next chunks, up to the window, as one range."""
        for first, last in partial.missing(self._window + 1):
            start = next((i for i in range(first, last + 1) if i not in waiting), None)
            if start is None:
                continue
            end = start
            room = self._window - len(waiting)
            while end + 1 <= last and end + 1 not in waiting and end + 1 - start < room:
                end += 1
            request = messages.Fetch(
                digest=partial.ref.digest, first=start, count=end - start + 1, chunk_bytes=partial.chunk_bytes
            )
            try:
                await self._publish(self._topic, messages.encode(request))
            except Transient as error:
                _log.debug("chunks_not_requested", error=str(error))
            else:
                self.asked += 1
                waiting.update(range(start, end + 1))
            return
