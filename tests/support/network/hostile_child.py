"""A malicious client as a process: ``-m tests.support.network.hostile_child PORT NAME VICTIM``; never ends.

It claims to be a device like the others, and answers every offer with every attack it knows, as fast as it
can.
"""

import asyncio
import contextlib
import random
import sys
from collections.abc import Iterator

import cbor2
import numpy as np

from protocol import messages
from protocol.errors import LichenError
from protocol.frames.cbor import SELF_DESCRIBED
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef, Fetch, ModalityState, Offer, State
from protocol.topics import Kind
from tests.support.coordinator.fake import FakeDevice, frame, header


class Villain(FakeDevice):
    def __init__(self, port: int, name: str, victim: str) -> None:
        super().__init__(port, name, mute=True)
        self.victim = victim
        self.replay = b""

    async def _take(self, message: messages.Wire) -> None:
        await super()._take(message)
        if isinstance(message, Offer) and message.asks(self.name):
            await self.attack(message)

    async def attack(self, offer: Offer) -> None:
        kinds = list(self.payloads(offer))
        random.Random(offer.round).shuffle(kinds)
        for kind, payload, mark in kinds * 10:
            with contextlib.suppress(LichenError):
                await self.publish(kind, payload, mark)

    def payloads(self, offer: Offer) -> Iterator[tuple[Kind, bytes, str | None]]:
        head = header(self.name, offer.round, offer.base)
        good = frame(head, 1.0)
        nan = np.full(64, np.nan, np.float32).tobytes()
        yield Kind.UPDATE, good.replace(np.float32(1.0).tobytes() * 64, nan), None
        yield Kind.UPDATE, frame(head, -100.0), None
        yield Kind.UPDATE, frame(header(self.victim, offer.round, offer.base), -100.0), None
        yield Kind.UPDATE, random.Random(1).randbytes(5000), None
        yield Kind.UPDATE, good[: len(good) // 2], None
        yield Kind.UPDATE, SELF_DESCRIBED + b"\x83\x01\xa0" + b"\x81" * 3000, None
        yield Kind.UPDATE, self.claiming(good, samples=-5), None
        yield Kind.UPDATE, self.claiming(good, samples=2**31 - 1, weight=1 << 20), None
        yield Kind.UPDATE, b"[" * 3000, None
        huge = BlobRef(digest="0" * 64, size=messages.MAX_BLOB_BYTES)
        pointer = BlobPointer(task="tiny", round=offer.round, blob=huge, chunk_bytes=1024)
        yield Kind.UPDATE, messages.encode(pointer), None
        yield Kind.UP_BLOB, bytes(60_000), "0" * 64
        yield Kind.UP_BLOB, good, digest(good)
        yield Kind.STATE, messages.encode(State(status="offline", device=self.victim)), None
        yield Kind.FETCH, messages.encode(Fetch(digest="f" * 64, first=0, count=64, chunk_bytes=1024)), None
        yield Kind.METRIC, b"\xff" * 3000, None
        if self.replay:
            yield Kind.UPDATE, self.replay, None
        self.replay = frame(head, -3.0)

    @staticmethod
    def claiming(update: bytes, **changes: int) -> bytes:
        content = cbor2.loads(update[len(SELF_DESCRIBED) :])
        content[1].update(changes)
        return SELF_DESCRIBED + cbor2.dumps(content)

    async def hello(self, status: str = "online") -> None:
        known = {"acc": ModalityState(windows=(2**31 - 1, 2**31 - 1))}
        state = State(status=status, device=self.name, roles=self.roles, modalities=known, windows=2**31 - 1)
        await self.publish(Kind.STATE, messages.encode(state), retain=True)


async def main(port: int, name: str, victim: str) -> None:
    async with Villain(port, name, victim):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
