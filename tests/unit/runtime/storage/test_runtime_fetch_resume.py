"""After a reconnect a download asks again for what is lost, and for nothing that still comes."""

import asyncio
import hashlib

import pytest

from protocol.errors import Transient
from protocol.messages import BlobRef, Fetch, decode
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.support.services import until

DATA = bytes(range(256)) * 64  # 16 chunks
CHUNK = 1024
REF = BlobRef(digest=hashlib.sha256(DATA).hexdigest(), size=len(DATA))


class Wire:
    """Keeps what is asked for; answers when told."""

    def __init__(self, tmp_path):
        self.asked: list[int] = []
        self.down = False
        self.fetcher = Fetcher(self.publish, "f", "d", BlobStore(tmp_path), CHUNK, window=4, stall_s=30.0)

    async def publish(self, _topic, payload, **_):
        if self.down:
            raise Transient("away")
        fetch = decode(payload, Fetch)
        self.asked += range(fetch.first, fetch.first + fetch.count)

    def answer(self, *indices: int) -> None:
        for n in indices:
            self.fetcher.on_chunk(REF.digest, n, DATA[n * CHUNK : (n + 1) * CHUNK])


async def test_a_kept_session_brings_what_was_asked_for_and_it_is_not_asked_for_again(tmp_path):
    wire = Wire(tmp_path)
    pulling = asyncio.create_task(wire.fetcher.fetch(REF, 20))
    await until(lambda: wire.asked == [0, 1, 2, 3])
    wire.fetcher.on_connected(resumed=True)
    await asyncio.sleep(0.1)
    assert wire.asked == [0, 1, 2, 3]
    sent = 0
    while not pulling.done():
        await until(lambda sent=sent: len(wire.asked) > sent or pulling.done())
        wire.answer(*wire.asked[sent:])
        sent = len(wire.asked)
    assert (await pulling).read_bytes() == DATA
    assert wire.asked == list(range(16)), "each once"
    assert wire.fetcher.ignored == 0


async def test_a_lost_session_makes_it_ask_again_at_once(tmp_path):
    wire = Wire(tmp_path)
    pulling = asyncio.create_task(wire.fetcher.fetch(REF, 20))
    await until(lambda: wire.asked == [0, 1, 2, 3])
    wire.answer(1)
    wire.fetcher.on_connected()
    await until(lambda: len(wire.asked) > 4)
    assert wire.asked[4] == 0
    assert 1 not in wire.asked[4:]
    pulling.cancel()
    await asyncio.wait([pulling])


@pytest.mark.parametrize("resumed", [True, False])
async def test_what_could_not_be_asked_for_while_away_is_asked_for_on_return(tmp_path, resumed):
    wire = Wire(tmp_path)
    wire.down = True
    pulling = asyncio.create_task(wire.fetcher.fetch(REF, 20))
    await asyncio.sleep(0.1)
    assert wire.asked == []
    wire.down = False
    wire.fetcher.on_connected(resumed=resumed)
    await until(lambda: wire.asked[:4] == [0, 1, 2, 3])
    pulling.cancel()
    await asyncio.wait([pulling])
