"""Downloads blobs by ranges, despite loss, repeats and disorder (docs/adr/0002-pull-by-fetch.md)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from protocol import messages
from protocol.errors import LichenError, Refused, Transient
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
        """Return when the broker has the message, else raise ``Transient``."""


class Download(Protocol):
    """Downloads a blob's missing chunks from a URL."""

    async def __call__(self, url: str, partial: Partial) -> None:
        """Return when all chunks are here.

        Raises:
            LichenError: they are not; the received ones stay.
        """


class _News(Enum):
    """News for a running download besides chunks."""

    NO_SUCH_BLOB = "the peer has no such blob"
    CONNECTED = "requested chunks may be lost: request them again, at once"
    RESUMED = "requested chunks still come; request those that could not be requested"


class _Pull:
    """A running download: received chunks are put in here, bounded; the task that fetches writes them.

    ``by_url``: a URL may be asked for; not after one failed. A URL is text in the queue.
    """

    def __init__(self, window: int, *, by_url: bool) -> None:
        self.arrived: asyncio.Queue[tuple[int, bytes] | _News | str] = asyncio.Queue(4 * window)
        self.by_url = by_url


class Fetcher:
    """Downloads blobs chunk by chunk into a store; one download per digest at a time, any number of digests.

    Args:
        publish: ``Link.publish``.
        fleet: for the topic.
        device: for the topic.
        store: of blobs and partial downloads.
        chunk_bytes: size of the chunks to request, or a function that returns it (``lambda:
            link.chunk_bytes``).
        window: maximum number of chunks requested and not yet received.
        stall_s: after this long without a new chunk, missing chunks are requested again; doubles up to 30 s.
        download: follows the URLs that the coordinator gives instead of chunks; None: only chunks.
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
        download: Download | None = None,
    ) -> None:
        self._publish = publish
        self._topic = device_topic(fleet, device, Kind.FETCH)
        self._store = store
        self._chunk_bytes = chunk_bytes if callable(chunk_bytes) else lambda: chunk_bytes
        self._window = window
        self._stall_s = stall_s
        self._download = download
        self._pulls: dict[str, _Pull] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.ignored = 0
        """Chunks that no download expected, repeated chunks, and chunks that did not fit."""
        self.asked = 0
        """Fetch messages sent."""
        self._sparing = LineRateLimiter()

    async def fetch(self, ref: BlobRef, timeout_s: float) -> Path:
        """The path of a verified blob, downloaded unless it is here; an interrupted download continues.

        Raises:
            Transient: not complete in ``timeout_s``, or the peer has no such blob for now. Received chunks
                stay.
            Refused: WRONG_DIGEST twice: the peer sends other bytes than it announced.
        """
        async with self._alone(ref.digest):
            if await asyncio.to_thread(self._store.has, ref.digest):
                return self._store.path(ref.digest)
            pull = self._pulls[ref.digest] = _Pull(self._window, by_url=self._download is not None)
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
        """Remove a blob that is no longer needed, or its partial download (accesses the disk)."""
        self._store.remove(digest)

    def on_chunk(self, digest: str, index: int, data: bytes) -> None:
        """A chunk came on ``down/blob``. Never blocks; above the bound it is dropped and requested again."""
        self._hand_over(digest, (index, data))

    def on_no_such_blob(self, digest: str) -> None:
        """The coordinator has no such blob, for now."""
        self._hand_over(digest, _News.NO_SUCH_BLOB)

    def on_url(self, digest: str, url: str) -> None:
        """The coordinator gave a URL instead of chunks."""
        self._hand_over(digest, url)

    def on_connected(self, *, resumed: bool = False) -> None:
        """Connected (again): downloads that wait for chunks continue at once, not after their stall.

        Args:
            resumed: the broker still had our session and its undelivered chunks. A new request would bring
                each twice; if they are lost anyway, the stall requests them.
        """
        for digest in self._pulls:
            self._hand_over(digest, _News.RESUMED if resumed else _News.CONNECTED)

    def _hand_over(self, digest: str, item: tuple[int, bytes] | _News | str) -> None:
        pull = self._pulls.get(digest)
        if pull is None or pull.arrived.full():
            self.ignored += 1
        else:
            pull.arrived.put_nowait(item)

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """One download of a digest at a time; a second caller finds the result in the store."""
        lock = self._locks.setdefault(digest, asyncio.Lock())  # lives while a task holds it or waits
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
                pull.by_url = False
                _log.warning("blob_damaged", error=error.detail)
            else:
                return

    async def _pull(self, partial: Partial, pull: _Pull) -> None:
        """Request and store chunks until all are here."""
        waiting: set[int] = set()  # requested, not here yet
        stall_s = self._stall_s
        while not partial.complete:
            if len(waiting) <= self._window // 2:
                await self._ask(partial, waiting, pull)
            try:
                async with asyncio.timeout(stall_s):
                    item = await pull.arrived.get()
            except TimeoutError:
                waiting.clear()
                stall_s = min(2 * stall_s, _MAX_STALL_S)
                continue
            if item is _News.NO_SUCH_BLOB:
                raise Transient(f"the coordinator does not have blob {partial.ref.digest} (any more)")
            if isinstance(item, str):
                await self._by_url(item, partial, pull)
                waiting.clear()
                continue
            if isinstance(item, _News):
                if item is _News.CONNECTED:
                    waiting.clear()
                stall_s = self._stall_s
                continue
            if await self._take(partial, *item):
                stall_s = self._stall_s
            waiting.discard(item[0])

    async def _by_url(self, url: str, partial: Partial, pull: _Pull) -> None:
        """Download the rest; after a failure it comes as chunks."""
        if self._download is None or not pull.by_url:
            self.ignored += 1
            return
        try:
            await self._download(url, partial)
        except LichenError as error:
            pull.by_url = False
            _log.warning("download_failed", blob=partial.ref.digest, error=str(error))

    async def _take(self, partial: Partial, index: int, data: bytes) -> bool:
        try:
            new = await asyncio.to_thread(partial.add, index, data)
        except Refused as error:
            if (unsaid := self._sparing.unsaid()) is not None:
                _log.warning("chunk_refused", blob=partial.ref.digest, error=error.detail, **unsaid)
            new = False
        self.ignored += not new
        return new

    async def _ask(self, partial: Partial, waiting: set[int], pull: _Pull) -> None:
        """Request the next chunks, up to the window, as one range."""
        for first, last in partial.missing(self._window + 1):
            start = next((i for i in range(first, last + 1) if i not in waiting), None)
            if start is None:
                continue
            end = start
            room = self._window - len(waiting)
            while end + 1 <= last and end + 1 not in waiting and end + 1 - start < room:
                end += 1
            request = messages.Fetch(
                digest=partial.ref.digest,
                first=start,
                count=end - start + 1,
                chunk_bytes=partial.chunk_bytes,
                download=pull.by_url or None,
            )
            try:
                await self._publish(self._topic, messages.encode(request))
            except Transient as error:
                _log.debug("chunks_not_requested", error=str(error))
            else:
                self.asked += 1
                waiting.update(range(start, end + 1))
            return
