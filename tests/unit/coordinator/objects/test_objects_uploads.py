"""Chunks without affinity: several processes take chunks of one upload, over a folder and over a bucket."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ingest.chunked_uploads import Uploads
from coordinator.objects.chunks import ChunkStore, assembly_of, may_be_last
from coordinator.objects.contract import FoundObject
from coordinator.objects.folder import FolderObjects
from protocol.errors import Reason, Refused, Transient
from protocol.frames.chunks import chunk_at, chunk_count
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef, Want
from tests.support.network.object_store import hostile, objects_at


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    if request.param == "folder":
        return ChunkStore(FolderObjects(tmp_path))
    return ChunkStore(objects_at(request.getfixturevalue("bucket")))


def pointer_to(data: bytes, round_: int = 1) -> BlobPointer:
    ref = BlobRef(digest=digest(data), size=len(data))
    return BlobPointer(task="tiny", round=round_, blob=ref, chunk_bytes=1024)


class Fleet:
    """Several processes; a device's messages go to any of them."""

    def __init__(self, store: ChunkStore, count: int, seed: int = 0) -> None:
        self.now = 0.0
        self.all = [Uploads(store, 1 << 20, 1 << 22, lambda: self.now, shared=True) for _ in range(count)]
        self._random = random.Random(seed)
        for one in self.all:
            one.enter_round(1)

    @property
    def any(self) -> Uploads:
        return self._random.choice(self.all)

    def send(self, device: str, pointer: BlobPointer, data: bytes, which) -> list[bytes]:
        made = [
            self.any.add(device, pointer.blob.digest, n, chunk_at(data, n, pointer.chunk_bytes))
            for n in which
        ]
        return [one for one in made if one is not None]


def test_whoever_sees_the_last_chunk_has_the_whole_once(store) -> None:
    fleet, data = Fleet(store, 3), random.Random(1).randbytes(20 * 1024 + 5)
    pointer = pointer_to(data)
    answer = fleet.any.announce("d", pointer, 1 << 20)
    assert answer == Want(digest=digest(data), missing=((0, 20),))
    assert fleet.send("d", pointer, data, range(21)) == [data]
    assert store.others(1, "d") == [], "the chunks are removed"
    assert fleet.send("d", pointer, data, [20]) == [], "late, and no harm"


def test_missing_chunks_are_answered_from_the_listing_and_may_go_to_any_process(store) -> None:
    fleet, data = Fleet(store, 3), random.Random(2).randbytes(24 * 1024)
    pointer = pointer_to(data)
    fleet.all[0].announce("d", pointer, 1 << 20)
    lost = {3, 5, 6}
    assert fleet.send("d", pointer, data, [n for n in range(24) if n not in lost]) == []
    fleet.now += 5.0
    assert fleet.all[2].announce("d", pointer, 1 << 20).missing == ((3, 3), (5, 6))
    fleet.now += 5.0
    assert fleet.send("d", pointer, data, sorted(lost)) == [data]


def test_a_process_that_comes_later_knows_all_that_is_here(store) -> None:
    fleet, data = Fleet(store, 1), random.Random(3).randbytes(3000)
    pointer = pointer_to(data)
    fleet.any.announce("d", pointer, 1 << 20)
    fleet.send("d", pointer, data, [0, 1])
    later = Fleet(store, 1)
    assert later.any.announce("d", pointer, 1 << 20).missing == ((2, 2),)
    assert later.send("d", pointer, data, [2]) == [data]


def test_wrong_bytes_are_refused_and_the_upload_starts_again(store) -> None:
    fleet, data = Fleet(store, 2), random.Random(4).randbytes(3000)
    pointer = pointer_to(data)
    fleet.any.announce("d", pointer, 1 << 20)
    with pytest.raises(Refused) as caught:
        fleet.send("d", pointer, bytes(3000), range(3))
    assert caught.value.reason is Reason.WRONG_DIGEST
    assert fleet.any.announce("d", pointer, 1 << 20).missing == ((0, 2),)
    assert fleet.send("d", pointer, data, range(3)) == [data]


def test_a_device_cannot_touch_anothers_upload_nor_exceed_its_quota_at_several_processes(store) -> None:
    fleet = Fleet(store, 3)
    mine, others = random.Random(5).randbytes(3000), []
    fleet.any.announce("a", pointer_to(mine), 1 << 20)
    assert fleet.send("b", pointer_to(mine), bytes(3000), range(3)) == []
    for n in range(5):
        data = bytes([n]) * 600_000
        others.append(digest(data))
        fleet.all[n % 3].announce("b", pointer_to(data), 1 << 20)
        fleet.send("b", pointer_to(data), data, range(2))
    assert store.others(1, "b") == others[-1:], "1 MiB a device, at whichever process"
    assert fleet.send("a", pointer_to(mine), mine, range(3)) == [mine]


def test_a_new_round_removes_earlier_uploads_and_no_later_ones(store) -> None:
    fleet, data = Fleet(store, 2), bytes(3000)
    fleet.all[0].announce("d", pointer_to(data), 1 << 20)
    fleet.all[1].enter_round(3)
    fleet.all[1].announce("d", pointer_to(data, 3), 1 << 20)
    fleet.all[0].enter_round(2)
    assert store.others(1, "d") == []
    assert store.others(3, "d") == [digest(data)]


def test_no_answer_of_the_store_loses_nothing_that_was_stored(bucket) -> None:
    with hostile(bucket) as (proxy, url):
        fleet, data = Fleet(ChunkStore(objects_at(url, timeout_s=0.5)), 2), random.Random(6).randbytes(3000)
        pointer = pointer_to(data)
        fleet.any.announce("d", pointer, 1 << 20)
        fleet.send("d", pointer, data, [0, 1])
        proxy.fault = lambda handler, _: handler.error(503, "SlowDown")
        for attempt in (
            lambda: fleet.send("d", pointer, data, [2]),
            lambda: fleet.any.announce("d", pointer, 1 << 20),
        ):
            with pytest.raises(Transient, match=r"storage\.blobs"):
                attempt()
        fleet.all[0].enter_round(1)
        proxy.fault = lambda *_: False
        assert fleet.any.announce("d", pointer, 1 << 20).missing == ((2, 2),)
        assert fleet.send("d", pointer, data, [2]) == [data]


def test_names_that_nobody_announced_are_looked_up_at_intervals(bucket) -> None:
    with hostile(bucket) as (proxy, url):
        fleet = Fleet(ChunkStore(objects_at(url)), 1)
        asked = len(proxy.asked)
        for _ in range(20):
            assert fleet.any.add("d", digest(b"made up"), 0, b"x") is None
        assert len(proxy.asked) == asked + 1
        alone = Uploads(ChunkStore(objects_at(url)), 1000, 1000)
        alone.enter_round(1)
        asked = len(proxy.asked)
        assert alone.add("d", digest(b"made up"), 0, b"x") is None
        assert len(proxy.asked) == asked, "one process alone knows all announcements"


@given(size=st.integers(1, 200_000), here=st.sets(st.integers(0, 250)), torn=st.sets(st.integers(0, 250)))
def test_a_listing_says_exactly_which_chunks_are_here(size: int, here: set[int], torn: set[int]) -> None:
    pointer = BlobPointer(task="t", round=1, blob=BlobRef(digest=digest(b""), size=size), chunk_bytes=1024)
    count = chunk_count(size, 1024)
    length = {n: min(1024, size - n * 1024) for n in range(count)}
    found = [FoundObject(f"u/{n}", length.get(n, 7) - (n in torn), 0.0) for n in here]
    assembly = assembly_of(pointer, [*found, FoundObject("u/pointer", 99, 0.0)])
    wanted = {n for n in here - torn if n < count}
    assert {n for n in range(count) if assembly.has(n)} == wanted
    assert assembly.complete == (wanted == set(range(count)))
    assert may_be_last(assembly, count - 1, 0.0)
