"""Large updates in chunks: only for an announced pointer, with a quota for each device and a cap for all.

Chunks are stored as objects (:mod:`coordinator.objects.chunks`), apart from served blobs, and removed with
their round. A chunk that is out of order, repeated, late or unexpected does no harm.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from coordinator.objects.chunks import ChunkStore, check_chunk, may_be_last
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.frames.chunks import Assembly, chunk_count
from protocol.messages import BlobPointer, Want

_PER_DEVICE: Final = 2
_RANGES: Final = 64
IDLE_S: Final = 60.0
"""If all room is reserved, an upload that has been idle for this long is dropped for a new one."""
_UNKNOWN_S: Final = 5.0
"""An upload that nobody announced is looked for again after this time."""
_UNKNOWN: Final = 1024

Key = tuple[str, str]
"""Device and digest."""


@dataclass(eq=False)
class _Upload:
    pointer: BlobPointer
    here: Assembly
    touched: float
    """Monotonic seconds, when its last chunk came."""
    looked: float
    """Monotonic seconds, when its listing was read last."""
    complete: bool = False
    """Every chunk is here, and a thread computes its digest."""


@dataclass(eq=False, repr=False)
class Uploads:
    """Uploads in progress. Synchronous (waits for the store) and thread-safe; none waits for another.

    Args:
        chunks: the store of chunks.
        per_device_bytes: limit for all uploads of one device.
        total_bytes: limit for all uploads that this process knows.
        now: monotonic seconds.
        shared: other processes take chunks, too: a chunk may belong to an upload announced elsewhere.
    """

    chunks: ChunkStore
    per_device_bytes: int
    total_bytes: int
    now: Callable[[], float] = time.monotonic
    shared: bool = False

    def __post_init__(self) -> None:
        self._round: int | None = None
        self._open: dict[Key, _Upload] = {}
        self._unknown: OrderedDict[Key, float] = OrderedDict()
        self._lock = threading.Lock()
        """Of what this process knows; never held while the store is asked."""

    @property
    def announced_bytes(self) -> int:
        """Bytes that all announced uploads will take in the store."""
        return sum(upload.pointer.blob.size for upload in list(self._open.values()))

    def enter_round(self, round_: int) -> None:
        """Drop the uploads of earlier rounds, here and in the store."""
        with self._lock:
            if self._round is not None and round_ <= self._round:  # a worker that was slow to come here
                return
            self._open.clear()
            self._unknown.clear()
            self._round = round_
        with suppress(LichenError, OSError):  # what is left goes with the next round
            self.chunks.forget_before(round_)

    def announce(self, device: str, pointer: BlobPointer, max_bytes: int) -> Want | bytes:
        """Register the pointer to an upload.

        Returns:
            What is missing; or the whole update, if its last chunk is already here.

        Raises:
            Refused: too large, or no room.
            Transient: another thread verifies this very update, or the store does not answer.
        """
        key = (device, pointer.blob.digest)
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.complete:
                raise Transient(f"the update {key[1][:12]} of {device} is being verified")
            if known is not None and known.pointer != pointer:
                del self._open[key]
                known = None
        upload = known or self._begin(device, pointer, max_bytes)
        if not self._look(upload, device):
            return Want(digest=pointer.blob.digest, missing=upload.here.missing(_RANGES))
        try:
            whole = self._finish(key, upload)
        except Refused:  # a power cut left chunks without their content: start again
            upload = self._begin(device, pointer, max_bytes)
            return Want(digest=pointer.blob.digest, missing=upload.here.missing(_RANGES))
        if whole is None:
            raise Transient(f"the update {key[1][:12]} of {device} is completed by another process")
        return whole

    def _begin(self, device: str, pointer: BlobPointer, max_bytes: int) -> _Upload:
        """Register a new upload, for which others give way.

        Raises:
            Refused: too large, empty, or no room.
        """
        size = pointer.blob.size
        if size > (most := min(max_bytes, self.per_device_bytes)):
            raise Refused(
                Reason.TOO_LARGE, f"blob.size: an update of {size} bytes; this model's take at most {most}"
            )
        if chunk_count(size, pointer.chunk_bytes) == 0:
            raise Refused(Reason.MALFORMED, "blob.size: an update cannot be empty")
        self._drop_older(device, pointer)
        upload = self._register(device, pointer)
        self.chunks.announce(device, pointer)
        return upload

    def _register(self, device: str, pointer: BlobPointer) -> _Upload:
        """Take a place for an upload; idle uploads give way, the longest idle first.

        Raises:
            Refused: there is none.
        """
        size, key, gone = pointer.blob.size, (device, pointer.blob.digest), []
        empty = Assembly(size, pointer.chunk_bytes)
        with self._lock:
            waiting = [key for key, upload in self._open.items() if not upload.complete]
            for old in sorted(waiting, key=lambda key: self._open[key].touched):
                idle_s = self.now() - self._open[old].touched
                if self.announced_bytes + size <= self.total_bytes or idle_s < IDLE_S:
                    break
                gone.append((self._open.pop(old).pointer.round, *old))
            if room := self.announced_bytes + size <= self.total_bytes:
                upload = self._open.setdefault(key, _Upload(pointer, empty, self.now(), self.now()))
        for round_, of, digest in gone:
            self.chunks.discard(round_, of, digest)
        if not room:
            raise Refused(Reason.FULL, f"uploads.total_bytes: {self.total_bytes} bytes are announced already")
        return upload

    def _look(self, upload: _Upload, device: str) -> bool:
        """Read the listing of an upload; whether it is complete, and this thread is to finish it."""
        here = self.chunks.present(device, upload.pointer)
        with self._lock:
            upload.here, upload.looked = here, self.now()
            mine = here.complete and not upload.complete
            upload.complete = here.complete
        return mine

    def _drop_older(self, device: str, pointer: BlobPointer) -> None:
        """Of this device only the newest uploads stay, whichever process took them."""
        sizes = {}
        for digest in self.chunks.others(pointer.round, device):
            of = self.chunks.announced(pointer.round, device, digest)
            if digest != pointer.blob.digest:
                sizes[digest] = self.per_device_bytes if of is None else of.blob.size
        with self._lock:
            mine = {key[1]: one for key, one in self._open.items() if key[0] == device and not one.complete}
            busy = {key[1] for key, one in self._open.items() if key[0] == device and one.complete}
        sizes |= {d: one.pointer.blob.size for d, one in mine.items() if d not in sizes}
        sizes = {digest: size for digest, size in sizes.items() if digest not in busy}
        left = sum(sizes.values()) + pointer.blob.size
        for count, (digest, size) in enumerate(sizes.items()):
            if len(sizes) - count < _PER_DEVICE and left <= self.per_device_bytes:
                return
            with self._lock:
                self._open.pop((device, digest), None)
            self.chunks.discard(pointer.round, device, digest)
            left -= size

    def add(self, device: str, digest: str, index: int, data: bytes) -> bytes | None:
        """Store a chunk.

        Returns:
            The whole update if this was the last chunk; None if more are missing, or the upload was not
            announced.

        Raises:
            Refused: the chunk does not fit its pointer, or the whole has another digest (the upload starts
                again).
            Transient: the store does not answer.
        """
        key = (device, digest)
        upload = self._open.get(key)
        if upload is None and self.shared:
            upload = self._adopted(key)
        if upload is None or upload.complete:
            return None
        check_chunk(upload.pointer, index, len(data))
        if upload.here.has(index):
            return None
        self.chunks.put(device, upload.pointer, index, data)
        with self._lock:
            if self._open.get(key) is not upload or upload.complete:
                return None
            upload.here.add(index, len(data))
            upload.touched = self.now()
            upload.complete = mine = upload.here.complete
            since_look_s = self.now() - upload.looked
        if not mine and self.shared and may_be_last(upload.here, index, since_look_s):
            mine = self._look(upload, device)
        return self._finish(key, upload) if mine else None

    def _adopted(self, key: Key) -> _Upload | None:
        """An upload that another process announced; None: there is none."""
        with self._lock:
            round_, tried = self._round, self._unknown.get(key)
        if round_ is None or (tried is not None and self.now() - tried < _UNKNOWN_S):
            return None
        pointer = self.chunks.announced(round_, *key)
        if pointer is not None and pointer.blob.digest == key[1] and pointer.round == round_:
            with suppress(Refused):
                return self._register(key[0], pointer)
        with self._lock:
            self._unknown[key] = self.now()
            while len(self._unknown) > _UNKNOWN:
                self._unknown.popitem(last=False)
        return None

    def _finish(self, key: Key, upload: _Upload) -> bytes | None:
        """The whole update; the device's folder is removed, with any other upload in it.

        Returns:
            None: another process has completed it.

        Raises:
            Refused: its digest is wrong; its chunks are removed.
            Transient: its round is over, or the store does not answer.
        """
        device, round_ = key[0], upload.pointer.round
        try:
            payload = self.chunks.whole(device, upload.pointer)
        except KeyError:
            self._forget(key, upload)
            if self.shared:
                return None
            raise Transient(f"the chunks of the update {key[1][:12]} of {device} are gone") from None
        except Refused:
            if self._forget(key, upload):
                self.chunks.discard(round_, *key)
            raise
        except BaseException:
            self._forget(key, upload)
            raise
        if self._forget(key, upload):
            with self._lock:
                for other in [other for other in self._open if other[0] == device]:
                    del self._open[other]
            with suppress(LichenError, OSError):  # what is left goes with its round
                self.chunks.discard_all(round_, device)
        return payload

    def _forget(self, key: Key, upload: _Upload) -> bool:
        """False if its round is over and its uploads were dropped."""
        with self._lock:
            if self._open.get(key) is not upload:
                return False
            del self._open[key]
            return True

    def expects(self, device: str, digest: str) -> bool:
        """Whether chunks of that upload are expected."""
        return (device, digest) in self._open
