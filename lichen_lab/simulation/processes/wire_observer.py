"""Observes every update frame, receipt and announcement, independently of what processes report.

Frames are caught twice: on the wire (whole, or put together from chunks), and on the coordinator's disk as
hard links, which stay when the coordinator removes its own. Each is kept under the SHA-256 of its bytes.
"""

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from coordinator.storage.frame_files import SUFFIX, scan
from lichen_lab.simulation.processes.listener import listening
from protocol import messages
from protocol.errors import Refused
from protocol.frames.chunks import chunk_count
from protocol.frames.frame import digest, is_frame
from protocol.messages import BlobPointer, Receipt
from protocol.topics import Kind, Route, parse
from runtime.fleet_view import FleetView
from runtime.settings.load import MqttSettings

_LOOK_S: Final = 0.05
_SETTLE_S: Final = 0.3
"""For the last receipts to arrive."""


class WireObserver:
    """Observes the broker and the coordinator's journal folder.

    Args:
        settings: of the broker.
        fleet: its name.
        journal: the coordinator's folder of frames.
        keep: where frames are kept.
    """

    def __init__(self, settings: MqttSettings, fleet: str, journal: Path, keep: Path) -> None:
        self.view = FleetView(fleet)
        self.changed = asyncio.Event()
        self.sent: Counter[str] = Counter()
        """Digest -> messages of that update (a pointer counts as its update)."""
        self.receipts: Counter[tuple[int, str, str]] = Counter()
        """(round, device, digest) -> acknowledgements."""
        self.refusals: Counter[str] = Counter()
        """Reason -> receipts that refuse."""
        self.traffic: Counter[tuple[Kind, str]] = Counter()
        """(kind, device) -> messages."""
        self._journal, self._keep = journal, keep
        keep.mkdir(parents=True, exist_ok=True)
        self._pointers: dict[str, BlobPointer] = {}
        self._chunks: dict[str, dict[int, bytes]] = {}
        self._settings, self._fleet = settings, fleet

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch wire and journal until the end of the context."""
        async with listening(self._settings, f"witness-{self._fleet}", self):
            looking = asyncio.create_task(self._look(), name="witness of the journal")
            try:
                yield
            finally:
                await asyncio.sleep(_SETTLE_S)
                self.look()
                looking.cancel()
                await asyncio.wait([looking])

    def frame(self, mark: str) -> Path:
        """Path of a kept frame."""
        return self._keep / mark

    def count(self, kind: Kind) -> int:
        """Messages of that kind so far."""
        return sum(count for (one, _), count in self.traffic.items() if one is kind)

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""
        root = f"lichen/v1/{self._fleet}"
        return ((f"{root}/d/+/up/#", 1), (f"{root}/d/+/down/#", 1), (f"{root}/b/#", 1))

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message."""
        with contextlib.suppress(Refused):  # noise of ours or of the fault
            self._take(parse(topic), payload)
        self.view.apply(topic, payload)
        self.changed.set()

    def _take(self, route: Route, payload: bytes) -> None:
        self.traffic[route.kind, route.device or ""] += 1
        match route.kind:
            case Kind.UPDATE if is_frame(payload):
                self.sent[digest(payload)] += 1
                self._save(payload)
            case Kind.UPDATE:
                pointer = messages.decode(payload, BlobPointer)
                self._pointers[pointer.blob.digest] = pointer
                self.sent[pointer.blob.digest] += 1
            case Kind.UP_BLOB:
                self._chunk(route.digest or "", route.index or 0, payload)
            case Kind.RECEIPT:
                receipt = messages.decode(payload, Receipt, messages.Want)
                if isinstance(receipt, Receipt):
                    self._receipt(route.device or "", receipt)
            case _:
                pass

    def _receipt(self, device: str, receipt: Receipt) -> None:
        if receipt.status == "accepted":
            self.receipts[receipt.round, device, receipt.digest] += 1
        else:
            self.refusals[receipt.reason or "refused"] += 1

    def _chunk(self, mark: str, index: int, payload: bytes) -> None:
        chunks = self._chunks.setdefault(mark, {})
        chunks[index] = payload
        pointer = self._pointers.get(mark)
        if pointer is None or len(chunks) < chunk_count(pointer.blob.size, pointer.chunk_bytes):
            return
        whole = b"".join(chunks[number] for number in sorted(chunks))
        if digest(whole) == mark:
            self._save(whole)
            del self._chunks[mark]

    def _save(self, payload: bytes) -> None:
        path = self.frame(digest(payload))
        if not path.exists():
            path.write_bytes(payload)

    async def _look(self) -> None:
        """Link the journal's frames before they are removed: they stay for a round, and this looks often."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Link every frame in the journal's folders."""
        folders: list[Path] = []
        with contextlib.suppress(OSError):
            folders = list(self._journal.iterdir())
        for folder in folders:
            with contextlib.suppress(OSError):  # it was just removed, or its disk fails
                for file in folder.iterdir():
                    self._link(file)

    def _link(self, file: Path) -> None:
        target = self.frame(file.name)
        if file.name.startswith(".") or target.exists():
            return
        with contextlib.suppress(OSError):  # it was just removed, or its disk fails
            try:
                os.link(file, target)
            except OSError:  # another file system
                part = target.with_suffix(".part")
                shutil.copyfile(file, part)
                part.replace(target)
            if file.name.endswith(SUFFIX):  # frames that were accepted together
                for _, _, payload in scan(target.read_bytes()):
                    self._save(payload)
