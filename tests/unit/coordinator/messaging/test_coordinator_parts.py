"""Selection, roster, uploads, blob server, store, registry: each by itself."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements
from coordinator.ingest.chunked_uploads import Uploads
from coordinator.messaging.blob_server import BlobServer, FetchBudget
from coordinator.messaging.fetch_queue import MAX_WAITING, MOST_OF_STRANGERS
from coordinator.messaging.receipts import AnswerQueue, ReceiptSender
from coordinator.messaging.sender import Sender
from coordinator.objects.chunks import ChunkStore
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol import messages
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef, Fetch, ModalityState, State, Want
from protocol.topics import Kind, parse
from runtime.storage.blob_store import BlobStore
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import FakeLink
from tests.support.coordinator.fake import FLEET, tiny_task
from tests.support.coordinator.uploads import chunks


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "c.sqlite3") as made:
        yield made


def state_of(device: str, status: str = "online", **changes: object) -> State:
    modalities = {"acc": ModalityState(windows=(3, 0))}
    given = {"status": status, "device": device, "roles": ("train",), "windows": 3, "modalities": modalities}
    return State.model_validate(given | changes)


def test_the_roster_survives_a_restart_and_a_will_erases_nothing(store) -> None:
    roster = DeviceRegistry(store, lambda: 7.0)
    assert roster.update(state_of("a"))
    assert not roster.update(state_of("a")), "online again is no news"
    roster.update(state_of("watcher", roles=("observe",)))
    roster.update(state_of("poor", windows=1))
    roster.update(State(status="offline", device="a"))
    assert roster.eligible(Requirements(2)) == ()
    for device in ("a", "watcher", "poor"):
        store.put(schema.devices, **roster.row(device))
    again = DeviceRegistry(store, lambda: 8.0)
    assert again.online() == ("poor", "watcher")
    assert again.counts("a") == {"acc": (3, 0)}
    assert again.update(state_of("a"))
    assert again.eligible(Requirements(2)) == ("a",)
    assert again.coverage(("acc", "gyro"), 2) == {"acc": [3, 0], "gyro": [0, 0]}


def pointer(size: int, mark: str = "0", round_: int = 1) -> BlobPointer:
    ref = BlobRef(digest=digest(mark.encode()), size=size)
    return BlobPointer(task="tiny", round=round_, blob=ref, chunk_bytes=1024)


def test_uploads_stay_under_their_bounds(tmp_path) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    for mark in "abcdef":
        uploads.announce("d1", pointer(3000, mark), 10_000)
    assert uploads.announced_bytes == 3000, "a device's newest upload replaces its older ones"
    with pytest.raises(Refused) as refused:
        uploads.announce("d1", pointer(5000), 10_000)
    assert refused.value.reason is Reason.TOO_LARGE
    uploads.announce("d2", pointer(3000), 10_000)
    uploads.announce("d3", pointer(3000), 10_000)
    with pytest.raises(Refused) as refused:
        uploads.announce("d4", pointer(3000), 10_000)
    assert refused.value.reason is Reason.FULL
    with pytest.raises(Refused):
        uploads.announce("d5", pointer(0), 10_000)
    uploads.add("d2", pointer(3000).blob.digest, 0, b"x" * 1024)
    uploads.enter_round(2)
    assert uploads.announced_bytes == 0
    assert not list((tmp_path / "u").rglob("*/0")), "what nobody finished goes with its round"


def test_bytes_of_uploads_that_were_given_up_do_not_fill_the_disk(tmp_path) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    for number in range(20):
        uploads.announce("d1", pointer(3000, str(number)), 10_000)
        uploads.add("d1", pointer(3000, str(number)).blob.digest, 0, b"x" * 1024)
    assert len(list((tmp_path / "u").rglob("*/0"))) == 1
    again = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    again.enter_round(1)
    again.announce("d1", pointer(3000, "other"), 10_000)
    assert not list((tmp_path / "u").rglob("*/0")), "also what an earlier process began"


def whole(data: bytes, round_: int = 1) -> BlobPointer:
    ref = BlobRef(digest=digest(data), size=len(data))
    return BlobPointer(task="tiny", round=round_, blob=ref, chunk_bytes=1024)


def test_an_update_that_is_being_verified_is_announced_in_vain(tmp_path, monkeypatch) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    data, verify = b"y" * 1000, ChunkStore.whole
    announced = whole(data)

    def verified(store: ChunkStore, device: str, whole: BlobPointer) -> bytes:
        with pytest.raises(Transient, match=f"{announced.blob.digest[:12]} of d1 is being verified"):
            uploads.announce("d1", announced, 10_000)
        assert uploads.add("d1", announced.blob.digest, 0, data) is None
        assert uploads.announce("d2", announced, 10_000), "another device's is another update"
        return verify(store, device, whole)

    monkeypatch.setattr(ChunkStore, "whole", verified)
    uploads.announce("d1", announced, 10_000)
    assert uploads.add("d1", announced.blob.digest, 0, data) == data


def test_a_thread_that_comes_late_to_a_round_forgets_nothing(tmp_path) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(2)
    uploads.announce("d1", pointer(3000, round_=2), 10_000)
    for late in (1, 2):
        uploads.enter_round(late)
        assert uploads.expects("d1", pointer(3000).blob.digest)


def test_an_update_that_is_all_here_is_taken_when_it_is_announced_or_begun_anew(tmp_path) -> None:
    data = b"y" * 1000
    for content, wanted in ((data, True), (b"x" * 1000, False)):
        folder = tmp_path / str(wanted)
        chunks(folder).put("d1", whole(data), 0, content)
        uploads = Uploads(chunks(folder), per_device_bytes=4000, total_bytes=9000)
        uploads.enter_round(1)
        said = uploads.announce("d1", whole(data), 10_000)
        assert (said == data) == wanted
        if not wanted:
            assert said == Want(digest=digest(data), missing=((0, 0),))


def test_an_update_that_is_whole_ends_the_other_uploads_of_its_device_and_of_no_other(tmp_path) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    data, other = b"y" * 1000, pointer(2000, "other")
    both = (other, whole(data))
    for device in ("d1", "d2"):
        for one in both:
            uploads.announce(device, one, 10_000)
        uploads.add(device, other.blob.digest, 0, b"x" * 1024)
    assert uploads.add("d1", digest(data), 0, data) == data
    assert [uploads.expects("d1", one.blob.digest) for one in both] == [False, False]
    assert [uploads.expects("d2", one.blob.digest) for one in both] == [True, True]
    assert not (tmp_path / "u/uploads/1/d1").exists()
    assert uploads.announced_bytes == 3000


def test_frames_of_rounds_that_are_folded_leave_the_disk_and_those_of_the_open_round_stay(
    tmp_path, store
) -> None:
    journal = Journal(store, tmp_path / "updates")
    journal.forget_before(3)
    for round_ in (1, 2, 3, 10):
        journal.write(round_, digest(b"frame"), b"frame")
    (tmp_path / "updates" / "notes").mkdir()
    journal.forget_before(3)
    assert {folder.name for folder in (tmp_path / "updates").iterdir()} == {"3", "10", "notes"}
    assert journal.path(3, digest(b"frame")).read_bytes() == b"frame"


def test_a_lane_that_still_knows_the_round_before_spoils_no_upload(tmp_path) -> None:
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(2)
    uploads.announce("d1", pointer(3000, round_=2), 10_000)
    uploads.enter_round(1)
    assert uploads.expects("d1", pointer(3000).blob.digest)


def test_an_upload_that_gives_way_in_vain_leaves_no_bytes(tmp_path) -> None:
    """What is refused for lack of room has cost the device its older uploads: their bytes count no more."""
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=5000)
    uploads.enter_round(1)
    uploads.announce("d1", pointer(2000, "a"), 10_000)
    uploads.add("d1", pointer(2000, "a").blob.digest, 0, b"x" * 1024)
    uploads.announce("d2", pointer(3000, "b"), 10_000)
    with pytest.raises(Refused) as refused:
        uploads.announce("d1", pointer(4000, "c"), 10_000)
    assert refused.value.reason is Reason.FULL
    assert uploads.announced_bytes == 3000
    assert not list((tmp_path / "u/uploads/1/d1").rglob("*/0"))


def test_a_round_that_ends_in_one_lane_spoils_no_upload_in_the_other(tmp_path, monkeypatch) -> None:
    data, sizes = b"y" * 3000, []
    uploads = Uploads(chunks(tmp_path / "u"), per_device_bytes=4000, total_bytes=9000)
    uploads.enter_round(1)
    ref = BlobRef(digest=digest(data), size=len(data))
    uploads.announce("d1", BlobPointer(task="tiny", round=1, blob=ref, chunk_bytes=1024), 10_000)
    other = threading.Thread(target=uploads.enter_round, args=(2,))
    put = ChunkStore.put

    def slow(self: ChunkStore, device: str, of: BlobPointer, index: int, chunk: bytes) -> None:
        if index == 2:
            other.start()
            other.join(0.3)  # the other lane has its chance while this one writes
        put(self, device, of, index, chunk)

    monkeypatch.setattr(ChunkStore, "put", slow)
    with contextlib.suppress(Transient):  # the other lane was first: the bytes went with their round
        for index in range(3):
            done = uploads.add("d1", ref.digest, index, data[index * 1024 : (index + 1) * 1024])
            sizes.append(None if done is None else len(done))
    other.join()
    assert sizes in ([None, None, 3000], [None, None, None], [None, None]), "all of it, or nothing"
    assert uploads.announced_bytes == 0


async def serve(tmp_path, link: FakeLink, window: int = 2, known: tuple[str, ...] = ()):
    blobs = BlobStore(tmp_path / "blobs")
    post = Sender(link, FLEET)
    receipts = ReceiptSender(post, WriteBehindBuffer(None, ManualClock()), None, "tiny", AnswerQueue())
    budget = FetchBudget(0, known)
    server = BlobServer(
        blobs, post, receipts.enqueue, window, ManualClock(), budget, may_fetch=lambda *_: True
    )
    return blobs, server, asyncio.gather(server.run(), receipts.run())


async def test_blobs_are_served_fairly_and_a_bounded_number_in_flight(tmp_path) -> None:
    link = FakeLink()
    link.hold = asyncio.Event()
    blobs, server, task = await serve(tmp_path, link)
    ref = blobs.put(bytes(range(256)) * 400)
    for first in range(0, 100, 50):
        await server.request("greedy", Fetch(digest=ref.digest, first=first, count=50, chunk_bytes=1024))
    await server.request("small", Fetch(digest=ref.digest, first=0, count=3, chunk_bytes=1024))
    await asyncio.sleep(0.05)
    link.hold.set()
    async with asyncio.timeout(10):
        while len(link.sent) < 103:  # noqa: ASYNC110 - the fake link has no event to wait for
            await asyncio.sleep(0.01)
    assert max(link.most_in_flight.values()) == 2
    places = [i for i, (topic, _, _) in enumerate(link.sent) if parse(topic).device == "small"]
    assert max(places) < 50, "who asks for little does not wait for who asks for much"
    got = {parse(t).index: data for t, data, _ in link.sent if parse(t).device == "greedy"}
    assert b"".join(got[i] for i in range(100)) == blobs.get(ref.digest)
    task.cancel()


async def test_the_blob_server_bounds_its_queue_and_names_what_it_has_not(tmp_path) -> None:
    link = FakeLink()
    link.hold = asyncio.Event()
    blobs, server, task = await serve(tmp_path, link)
    ref = blobs.put(b"x" * 1024 * 1000)
    for first in range(0, 960, 64):
        await server.request("d", Fetch(digest=ref.digest, first=first, count=64, chunk_bytes=1024))
        await server.request("d", Fetch(digest=ref.digest, first=first, count=64, chunk_bytes=1024))
    assert server.dropped > 0
    assert server.dropped >= 960 - MAX_WAITING - 8, "but for those in flight"
    link.hold.set()
    await server.request("d", Fetch(digest="0" * 64, first=0, count=1, chunk_bytes=1024))
    await asyncio.sleep(0.1)
    assert link.to("d", Kind.CMD)[0].digest == "0" * 64
    link.connected = False
    await server.request("d", Fetch(digest=ref.digest, first=0, count=9, chunk_bytes=1024))
    await asyncio.sleep(0.05)
    assert not task.done(), "a broker that is away costs the chunk alone"
    task.cancel()


async def test_made_up_names_that_fetch_take_little_room_and_no_turn_of_a_known_device(tmp_path) -> None:
    link = FakeLink()
    link.hold = asyncio.Event()
    blobs, server, task = await serve(tmp_path, link, known=("known",))
    ref = blobs.put(b"x" * 1024 * 2)
    strangers = MOST_OF_STRANGERS + 500
    for n in range(strangers):
        await server.request(f"made-up-{n}", Fetch(digest=ref.digest, first=0, count=1, chunk_bytes=1024))
    await server.request("known", Fetch(digest=ref.digest, first=0, count=2, chunk_bytes=1024))
    dropped = server.dropped
    assert strangers - MOST_OF_STRANGERS - 8 <= dropped <= strangers - MOST_OF_STRANGERS
    link.hold.set()
    async with asyncio.timeout(60):
        while len(link.sent) < strangers - dropped + 2:  # noqa: ASYNC110 - the fake link has no event to wait for
            await asyncio.sleep(0.01)
    assert sorted(parse(topic).index for topic, _, _ in link.sent if parse(topic).device == "known") == [0, 1]
    await server.request("made-up-0", Fetch(digest=ref.digest, first=1, count=1, chunk_bytes=1024))
    assert server.dropped == dropped, "what was sent takes no room any more"
    task.cancel()


def test_a_transaction_is_all_or_nothing(store) -> None:
    def half() -> None:
        with store.transaction():
            store.put_meta({"a": "1"})
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        half()
    assert store.get_meta("a") is None
    assert store.rows(sa.text("PRAGMA synchronous").columns(sa.column("synchronous")))[0]["synchronous"] == 2


def test_refusals_of_endless_names_do_not_fill_the_disk(store, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.storage.database._MAX_REFUSAL_ROWS", 10)
    ledger = WriteBehindBuffer(store, ManualClock())
    for number in range(30):
        ledger.refused(f"d{number}", Refused(Reason.MALFORMED, "x" * 9000))
        ledger.save()
    rows = store.rows(sa.select(schema.refusals))
    assert len(rows) == 11
    assert sum(row["count"] for row in rows) == 30
    assert max(len(row["last_detail"]) for row in rows) == 300


def test_two_coordinators_do_not_share_a_state_folder(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3"):
        with pytest.raises(Misconfigured, match="another coordinator"):
            Database(tmp_path / "c.sqlite3")
        with Database(tmp_path / "c.sqlite3", read_only=True) as watching:
            assert watching.get_meta("task") is None
    Database(tmp_path / "c.sqlite3").close()


def test_a_file_that_is_no_database_is_named(tmp_path) -> None:
    path = tmp_path / "c.sqlite3"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(Misconfigured, match=r"c\.sqlite3"):
        Database(path)


def test_an_unchanged_blob_keeps_its_digest_and_old_versions_go(tmp_path, store) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    registry = ModelRegistry(store, blobs, tiny_task())
    rng = np.random.default_rng(1)
    still = {"head/w": rng.normal(size=5).astype(np.float32)}
    parent, manifests = None, []
    for version in range(4):
        state = {"head": still, "encoder/acc": {"encoder/acc/w": np.full((2, 3), version, np.float32)}}
        mark, manifest = registry.publish(version, state, parent)
        assert registry.publish(version, state, parent)[0] == mark, "made again after a crash, it is the same"
        registry.record(version, mark, parent, ("b", "a"), wall=1.0, traffic=(1, 2), metrics={})
        parent = mark
        manifests.append(manifest)
    assert len({m.blobs["head"].digest for m in manifests}) == 1
    assert len({m.blobs["encoder/acc"].digest for m in manifests}) == 4
    loaded = registry.state(parent)
    np.testing.assert_array_equal(loaded["head"]["head/w"], still["head/w"])
    assert loaded["encoder/acc"]["encoder/acc/w"].shape == (2, 3)
    bundle = blobs.put(b"bundle")
    assert registry.collect(3, 2, [bundle.digest]) > 0
    assert registry.state(parent).keys() == loaded.keys()
    assert blobs.has(bundle.digest)
    assert blobs.has(manifests[2].blobs["encoder/acc"].digest)
    assert not blobs.has(manifests[1].blobs["encoder/acc"].digest)
    assert messages.encode(manifests[3]) == blobs.get(parent)
