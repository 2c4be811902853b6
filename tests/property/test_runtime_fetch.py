"""The pull of blobs over a channel that drops, repeats, delays and damages chunks (seeded)."""

import asyncio
import hashlib
import random
import shutil

import pytest

from protocol import messages
from protocol.errors import Refused, Transient
from protocol.messages import BlobRef
from protocol.topics import Kind, parse
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.support.services import until

CHUNK = 1024


def _blob(seed: int, size: int) -> tuple[BlobRef, bytes]:
    data = random.Random(seed).randbytes(size)
    return BlobRef(digest=hashlib.sha256(data).hexdigest(), size=size), data


class Channel:
    """A coordinator behind a bad network."""

    def __init__(self, seed: int, *, drop=0.0, repeat=0.0, delay_s=0.0, refuse=0.0) -> None:
        self.dice = random.Random(seed)
        self.drop, self.repeat, self.delay_s, self.refuse = drop, repeat, delay_s, refuse
        self.blobs: dict[str, bytes] = {}
        self.fetcher: Fetcher | None = None
        self.requests: list[messages.Fetch] = []
        self.sent = 0
        self.on_the_way = 0
        self.most_on_the_way = 0

    async def publish(self, topic, payload, *, qos=1, retain=False, timeout_s=30.0):
        assert (parse(topic).kind, qos, retain) == (Kind.FETCH, 1, False)
        assert timeout_s > 0
        await asyncio.sleep(0)
        if self.dice.random() < self.refuse:
            raise Transient("not connected")
        request = messages.decode(payload, messages.Fetch)
        self.requests.append(request)
        for index in range(request.first, request.first + request.count):
            for _ in range(2 if self.dice.random() < self.repeat else 1):
                if self.dice.random() >= self.drop:
                    self.send(request.digest, index, request.chunk_bytes)

    def send(self, digest: str, index: int, chunk_bytes: int) -> None:
        data = self.blobs[digest][index * chunk_bytes : (index + 1) * chunk_bytes]
        self.sent += len(data)
        self.on_the_way += 1
        self.most_on_the_way = max(self.most_on_the_way, self.on_the_way)
        delay = self.dice.random() * self.delay_s
        asyncio.get_running_loop().call_later(delay, self._arrive, digest, index, data)

    def _arrive(self, digest: str, index: int, data: bytes) -> None:
        self.on_the_way -= 1
        self.fetcher.on_chunk(digest, index, data)


def _fetcher(channel: Channel, store: BlobStore, **options) -> Fetcher:
    options = {"window": 4, "stall_s": 0.05} | options
    channel.fetcher = Fetcher(channel.publish, "f", "d", store, CHUNK, **options)
    return channel.fetcher


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_the_network_does_the_blob_arrives_whole(seed, tmp_path):
    channel = Channel(seed, drop=0.2, repeat=0.3, delay_s=0.01, refuse=0.1)
    ref, data = _blob(seed, 20 * CHUNK + seed)
    channel.blobs[ref.digest] = data
    store = BlobStore(tmp_path)
    path = await _fetcher(channel, store).fetch(ref, 20)
    assert path.read_bytes() == data
    assert store.get(ref.digest) == data


async def test_a_good_network_costs_each_byte_once_and_keeps_the_window(tmp_path):
    channel = Channel(0, delay_s=0.005)
    ref, data = _blob(1, 40 * CHUNK + 1)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=5)
    await fetcher.fetch(ref, 20)
    assert channel.sent == ref.size
    assert channel.most_on_the_way <= 4
    assert fetcher.ignored == 0
    assert fetcher.asked == len(channel.requests)
    await fetcher.fetch(ref, 20)  # it is here: nothing travels
    assert channel.sent == ref.size


async def test_it_goes_on_at_the_first_missing_chunk_after_a_restart(tmp_path):
    channel = Channel(0, delay_s=0.02)
    ref, data = _blob(2, 10 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=5)
    fetching = asyncio.create_task(fetcher.fetch(ref, 20))
    await until(lambda: channel.sent >= 5 * CHUNK)
    fetching.cancel()
    await asyncio.wait([fetching])
    await asyncio.sleep(0.05)
    store = BlobStore(tmp_path)
    kept = sum(last - first + 1 for first, last in store.partial(ref, CHUNK).missing())
    assert 0 < kept < 10
    channel.sent = 0
    await _fetcher(channel, store).fetch(ref, 20)
    assert channel.sent == kept * CHUNK


async def test_two_who_want_the_same_blob_share_one_download(tmp_path):
    channel = Channel(0, delay_s=0.002)
    ref, data = _blob(3, 9 * CHUNK)
    other, more = _blob(4, 9 * CHUNK)
    channel.blobs |= {ref.digest: data, other.digest: more}
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=5)
    await asyncio.gather(*(fetcher.fetch(r, 20) for r in (ref, ref, other)))
    assert channel.sent == 18 * CHUNK
    assert not fetcher._locks
    assert not fetcher._pulls


async def test_a_silent_peer_is_transient_in_time_and_what_came_stays(tmp_path):
    channel = Channel(0, drop=1.0)
    ref, data = _blob(5, 3 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path))
    with pytest.raises(Transient, match=r"blob .* \(3072 bytes\) was not here in 0.4 s"):
        await fetcher.fetch(ref, 0.4)
    assert 2 <= len(channel.requests) <= 5  # it doubles its patience


async def test_no_such_blob_is_transient_at_once(tmp_path):
    channel = Channel(0, drop=1.0)
    ref, data = _blob(6, 3 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=30)
    asyncio.get_running_loop().call_later(0.02, fetcher.on_no_such_blob, ref.digest)
    with pytest.raises(Transient, match="does not have blob"):
        await fetcher.fetch(ref, 20)


async def test_connected_again_it_goes_on_at_once_and_not_after_its_stall(tmp_path):
    channel = Channel(0, drop=1.0)
    ref, data = _blob(6, 3 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=30)
    pull = asyncio.create_task(fetcher.fetch(ref, 20))
    await until(lambda: channel.requests)
    channel.drop = 0.0
    fetcher.on_connected()
    async with asyncio.timeout(5):
        assert (await pull).read_bytes() == data


async def test_a_download_that_failed_leaves_nothing_behind_in_memory_and_forget_nothing_on_disk(tmp_path):
    channel = Channel(0)
    ref, data = _blob(6, 3 * CHUNK)
    channel.blobs[ref.digest] = data
    store = BlobStore(tmp_path)
    fetcher = _fetcher(channel, store)
    channel.dice, channel.drop = random.Random(3), 0.6
    with pytest.raises(Transient):
        await fetcher.fetch(ref, 0.06)
    assert not fetcher._locks
    fetcher.forget(ref.digest)
    assert store.total_bytes() == 0


async def test_a_cache_that_somebody_cleared_while_we_ran_is_no_fault(tmp_path):
    channel, root = Channel(0), tmp_path / "cache"
    ref, data = _blob(6, 3 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(root))
    shutil.rmtree(root)
    assert (await fetcher.fetch(ref, 5)).read_bytes() == data


async def test_wrong_bytes_are_pulled_once_more_and_then_refused(tmp_path):
    channel = Channel(0)
    ref, data = _blob(7, 3 * CHUNK)
    channel.blobs[ref.digest] = b"x" * len(data)
    with pytest.raises(Refused, match="differs"):
        await _fetcher(channel, BlobStore(tmp_path)).fetch(ref, 20)
    assert channel.sent == 2 * ref.size
    channel.blobs[ref.digest] = data
    await _fetcher(channel, BlobStore(tmp_path)).fetch(ref, 20)


async def test_strangers_and_misfits_are_ignored_and_counted(tmp_path):
    channel = Channel(0, drop=1.0)
    ref, data = _blob(8, 2 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=5)
    fetcher.on_chunk("0" * 64, 0, b"x")
    fetching = asyncio.create_task(fetcher.fetch(ref, 20))
    await until(lambda: channel.requests)
    fetcher.on_chunk(ref.digest, 7, b"x")
    fetcher.on_chunk(ref.digest, 0, b"x")
    for index in (1, 1, 0):
        fetcher.on_chunk(ref.digest, index, data[index * CHUNK : (index + 1) * CHUNK])
    assert (await fetching).read_bytes() == data
    assert fetcher.ignored == 4


async def test_a_flood_is_bounded(tmp_path):
    channel = Channel(0, drop=1.0)
    ref, data = _blob(9, 200 * CHUNK)
    channel.blobs[ref.digest] = data
    fetcher = _fetcher(channel, BlobStore(tmp_path), stall_s=5)
    fetching = asyncio.create_task(fetcher.fetch(ref, 20))
    await until(lambda: channel.requests)
    for index in range(200):
        fetcher.on_chunk(ref.digest, index, data[index * CHUNK : (index + 1) * CHUNK])
    assert fetcher._pulls[ref.digest].arrived.qsize() == 16
    assert fetcher.ignored == 184
    fetching.cancel()
    await asyncio.wait([fetching])


async def test_an_empty_blob_needs_no_message(tmp_path):
    channel = Channel(0)
    ref, _ = _blob(0, 0)
    assert (await _fetcher(channel, BlobStore(tmp_path)).fetch(ref, 5)).read_bytes() == b""
    assert not channel.requests
