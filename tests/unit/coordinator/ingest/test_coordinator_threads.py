"""Large updates are verified beside each other, and commits wait for no other work in threads."""

import asyncio
import os
import threading

import pytest

from coordinator.ingest.chunked_uploads import Uploads
from coordinator.objects.chunks import ChunkStore
from protocol.errors import Transient
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef, Want
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task
from tests.support.coordinator.uploads import chunks


def pointer(data: bytes) -> BlobPointer:
    ref = BlobRef(digest=digest(data), size=len(data))
    return BlobPointer(task="tiny", round=1, blob=ref, chunk_bytes=1024)


@pytest.fixture
def slow(monkeypatch):
    """Verifying says that it has begun, and waits to be let go."""
    begun, go, verified = threading.Event(), threading.Event(), ChunkStore.whole

    def wait(self: ChunkStore, device: str, of: BlobPointer) -> bytes:
        begun.set()
        assert go.wait(30)
        return verified(self, device, of)

    monkeypatch.setattr(ChunkStore, "whole", wait)
    yield begun, go
    go.set()


def test_others_announce_and_send_while_an_upload_is_verified(tmp_path, slow) -> None:
    """One lock was held while up to 128 MiB were read and hashed: all other uploads stood still."""
    begun, go = slow
    first, second = b"a" * 2000, b"b" * 2000
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    uploads.announce("d1", pointer(first), 10_000)
    uploads.add("d1", pointer(first).blob.digest, 0, first[:1024])
    found: list[bytes | None] = []
    last = (first[1024:],)
    at_work = threading.Thread(
        target=lambda: found.append(uploads.add("d1", pointer(first).blob.digest, 1, *last))
    )
    at_work.start()
    assert begun.wait(30)
    assert isinstance(uploads.announce("d2", pointer(second), 10_000), Want), "nobody waits"
    assert uploads.add("d2", pointer(second).blob.digest, 0, second[:1024]) is None
    with pytest.raises(Transient, match="is being verified"):
        uploads.announce("d1", pointer(first), 10_000)
    assert uploads.add("d1", pointer(first).blob.digest, 1, *last) is None, "it is not finished twice"
    go.set()
    at_work.join(30)
    assert found == [first]
    assert not uploads.expects("d1", pointer(first).blob.digest)
    assert uploads.expects("d2", pointer(second).blob.digest)
    assert not (tmp_path / "u/uploads/1/d1").exists()


def test_a_round_that_ends_while_an_upload_is_verified_forgets_it(tmp_path, slow) -> None:
    begun, go = slow
    data, ends = b"a" * 1000, []
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    uploads.announce("d1", pointer(data), 10_000)

    def add() -> None:
        try:
            ends.append(uploads.add("d1", pointer(data).blob.digest, 0, data))
        except Transient as error:
            ends.append(error)

    at_work = threading.Thread(target=add)
    at_work.start()
    assert begun.wait(30)
    uploads.enter_round(2)
    uploads.announce("d1", pointer(data), 10_000)
    go.set()
    at_work.join(30)
    assert isinstance(ends[0], Transient), "its bytes went with the round"
    assert uploads.expects("d1", pointer(data).blob.digest), "what was announced since stays"


async def test_a_commit_waits_for_no_other_thread(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        go = threading.Event()
        others = [
            asyncio.create_task(asyncio.to_thread(go.wait, 30)) for _ in range((os.cpu_count() or 1) + 4)
        ]
        await asyncio.sleep(0.05)
        try:
            one = header("a", 1, made.app.driver.state.manifest)
            update = frame(one)
            async with asyncio.timeout(20):
                await made.app.receiver.commits.accept(one, digest(update), update)
            assert tuple(made.app.driver.state.delivered) == ("a",)
            assert not any(task.done() for task in others), "all other threads are still at work"
        finally:
            go.set()
            await asyncio.gather(*others)
