"""A leader and two processes that accept updates, which share nothing but the tables and a bucket."""

from itertools import cycle

from protocol import messages
from protocol.frames.chunks import chunk_at, chunk_count
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef
from protocol.topics import Kind
from tests.support.coordinator.cluster import accepting, leading
from tests.support.coordinator.fake import TinyJobs, frame, header, tiny_task
from tests.support.network.object_store import objects_at

CHUNK, SIZE = 1024, 6000


async def test_chunks_go_to_any_process_and_the_leader_folds_frames_of_the_bucket(bucket, tmp_path) -> None:
    task, blobs = tiny_task(count=1, min_devices=2), {"storage": {"blobs": bucket}}
    async with (
        leading(tmp_path, task, TinyJobs(size=SIZE), **blobs) as leader,
        accepting(tmp_path, 2, task, **blobs) as workers,
    ):
        await leader.online("a", "b")
        await leader.phase("collecting")
        base, turn = leader.app.driver.state.manifest, cycle(workers)
        large = frame(header("a", 1, base), size=SIZE)
        ref = BlobRef(digest=digest(large), size=len(large))
        pointer = BlobPointer(task="tiny", round=1, blob=ref, chunk_bytes=CHUNK)
        await next(turn).give("a", Kind.UPDATE, messages.encode(pointer))
        for index in range(chunk_count(len(large), CHUNK)):
            await next(turn).give("a", Kind.UP_BLOB, chunk_at(large, index, CHUNK), ref.digest, index)
        receipts = [one for worker in workers for one in worker.link.receipts("a")]
        assert [one.status for one in receipts] == ["accepted"]
        store = objects_at(bucket)
        assert store.folders("uploads/1") == set(), "the chunks are removed with their upload"
        assert [one.size >= len(large) for one in store.below("frames")] == [True]
        await next(turn).give("b", Kind.UPDATE, frame(header("b", 1, base), size=SIZE))
        await leader.until(lambda: leader.app.driver.state.version == 1)
        assert leader.app.round_worker.registry.row(1)["devices"] == ["a", "b"]
        assert not (tmp_path / "coordinator/updates").exists()
        assert not (tmp_path / "coordinator/uploads").exists()
