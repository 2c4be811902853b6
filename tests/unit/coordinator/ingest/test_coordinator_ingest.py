"""What devices send: accepted, refused with the right reason, and never a crash."""

import os
import random

import numpy as np
import pytest

from coordinator.round_machine.device_sets import NONE
from coordinator.status.history import read
from protocol import messages
from protocol.errors import Reason
from protocol.frames.frame import digest, sealed
from protocol.messages import BlobPointer, BlobRef, Metric, State
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyServer, frame, header, tiny_task


async def open_round(made, *devices: str) -> str:
    """A round is collecting from these devices; returns its base."""
    await made.online(*devices)
    await made.phase("collecting")
    assert tuple(made.app.driver.state.selected) == devices
    return made.app.driver.state.manifest


def pointer_to(update: bytes, round_: int = 1, chunk_bytes: int = 1024, **blob: object) -> BlobPointer:
    ref = BlobRef.model_validate({"digest": digest(update), "size": len(update)} | blob)
    return BlobPointer(task="tiny", round=round_, blob=ref, chunk_bytes=chunk_bytes)


async def test_accepted_is_in_the_journal_before_the_receipt(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        update = frame(header("a", 1, base))
        await made.give("a", Kind.UPDATE, update)
        receipt = made.link.receipts("a")[0]
        assert (receipt.status, receipt.round, receipt.digest) == ("accepted", 1, digest(update))
        assert (tmp_path / "coordinator/updates/1" / digest(update)).read_bytes() == update
        assert tuple(made.app.driver.state.delivered) == ("a",)
        found = read(tmp_path / "coordinator")["rounds"][0]["updates"]
        assert [u["device"] for u in found] == ["a"]


async def test_a_full_disk_gives_no_receipt_and_no_crash(tmp_path, monkeypatch) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        update = frame(header("a", 1, base))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(made.app.receiver._journal, "write", full)
            await made.give("a", Kind.UPDATE, update)
        assert made.link.receipts("a") == []
        assert tuple(made.app.driver.state.delivered) == ()
        await made.give("a", Kind.UPDATE, update)
        assert made.link.receipts("a")[0].status == "accepted"


async def test_the_same_update_again_is_receipted_again_and_counted_once(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        update = frame(header("a", 1, base))
        await made.give("a", Kind.UPDATE, update)
        await made.give("a", Kind.UPDATE, update)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.give("a", Kind.UPDATE, update)
        await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
        assert [r.status for r in made.link.receipts("a")] == ["accepted"] * 4
        assert len(read(tmp_path / "coordinator")["rounds"][0]["updates"]) == 2


BIG = np.full(64, 1e6, np.float32)
NAN = np.full(64, np.nan, np.float32)
REFUSED = {
    "other digest": (lambda b: frame(header("a", 1, b), 2.0), Reason.DUPLICATE),
    "device": (lambda b: frame(header("b", 1, b)), Reason.WRONG_DEVICE),
    "task": (lambda b: frame(header("c", 1, b, task="other")), Reason.UNKNOWN_TASK),
    "method": (lambda b: frame(header("c", 1, b, method="other")), Reason.UNKNOWN_TASK),
    "round": (lambda b: frame(header("c", 7, b)), Reason.WRONG_ROUND),
    "base": (lambda _: frame(header("c", 1, "0" * 64)), Reason.WRONG_BASE),
    "modality": (lambda b: frame(header("c", 1, b, quality={"smell": 1.0})), Reason.WRONG_MODALITY),
    "name": (
        lambda b: frame(header("c", 1, b), tensors={"head/v": np.zeros(64, np.float32)}),
        Reason.WRONG_TENSORS,
    ),
    "shape": (lambda b: frame(header("c", 1, b), size=65), Reason.WRONG_TENSORS),
    "bounds": (lambda b: frame(header("c", 1, b), tensors={"head/w": BIG}), Reason.OUT_OF_BOUNDS),
    "large": (lambda b: frame(header("c", 1, b), size=10**6), Reason.TOO_LARGE),
    "damaged": (lambda b: frame(header("c", 1, b))[:-9], Reason.WRONG_DIGEST),
    "damaged tag": (lambda b: b"\xd8" + frame(header("c", 1, b))[1:], Reason.WRONG_DIGEST),
    "damaged format": (
        lambda b: frame(header("c", 1, b))[:4] + b"\x03" + frame(header("c", 1, b))[5:],
        Reason.WRONG_DIGEST,
    ),
    "lying": (lambda b: sealed(frame(header("c", 1, b))[:-9]), Reason.MALFORMED),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_each_wrong_update_is_refused_with_its_reason_and_counted(tmp_path, case: str) -> None:
    make, reason = REFUSED[case]
    async with bench(tmp_path, tiny_task(min_devices=3)) as made:
        base = await open_round(made, "a", "b", "c")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        device = "a" if case in ("other digest", "device") else "c"
        if case == "device":
            made.app.driver.state = made.app.driver.state.model_copy(update={"delivered": NONE})
        update = make(base)
        await made.give(device, Kind.UPDATE, update)
        receipt = made.link.receipts(device)[-1]
        assert (receipt.status, receipt.reason) == ("refused", reason), receipt.detail
        assert receipt.digest == digest(update)
        assert made.refusals() == {(device, reason.value): 1}


async def test_not_a_number_is_refused_and_names_the_tensor(tmp_path) -> None:
    async with bench(tmp_path) as made:
        base = await open_round(made, "a")
        good = frame(header("a", 1, base), 1.0)
        bad = sealed(good[:-4].replace(np.float32(1.0).tobytes() * 64, NAN.tobytes()))
        assert bad != good
        await made.give("a", Kind.UPDATE, bad)
        receipt = made.link.receipts("a")[0]
        assert receipt.reason is Reason.NON_FINITE
        assert "head/w" in receipt.detail


async def test_strangers_and_the_unselected_are_refused(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(devices_per_round=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.online("b")
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.give("x", Kind.UPDATE, frame(header("x", 1, base)))
        assert made.link.receipts("b")[0].reason is Reason.NOT_SELECTED
        assert made.link.receipts("x")[0].reason is Reason.UNKNOWN_DEVICE


async def test_an_update_after_the_round_closed_is_of_a_wrong_round(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(quorum=0.5), spread_s=0.3) as made:
        base = await open_round(made, "a", "b")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        assert made.link.receipts("b")[0].reason is Reason.WRONG_ROUND


async def test_chunks_in_any_order_twice_and_late(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        update = frame(header("a", 1, base, extra={"padding": "x" * 4050}))
        chunks = [update[i : i + 1024] for i in range(0, len(update), 1024)]
        mark = digest(update)
        await made.give("a", Kind.UP_BLOB, chunks[0], mark, 0)  # before the pointer: nobody asked
        assert made.app.receiver.stray_chunks == 1
        pointer = messages.encode(pointer_to(update))
        await made.give("a", Kind.UPDATE, pointer)
        assert made.link.wants("a")[0].missing == ((0, len(chunks) - 1),)
        for index in (3, 1, 3):
            await made.give("a", Kind.UP_BLOB, chunks[index], mark, index)
        await made.give("a", Kind.UPDATE, pointer)
        assert made.link.wants("a")[1].missing == ((0, 0), (2, 2), (4, 4))
        await made.give("b", Kind.UP_BLOB, chunks[0], mark, 0)  # another's chunks do not count
        for index, chunk in enumerate(chunks):
            await made.give("a", Kind.UP_BLOB, chunk, mark, index)
        assert [r.status for r in made.link.receipts("a")] == ["accepted"]
        await made.give("a", Kind.UP_BLOB, chunks[0], mark, 0)
        assert tuple(made.app.driver.state.delivered) == ("a",)
        assert not list((tmp_path / "coordinator/uploads").rglob("*/0"))


async def test_chunks_that_do_not_make_the_digest_are_refused_and_may_come_anew(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        update = frame(header("a", 1, base, extra={"padding": "x" * 1500}))
        chunks = [update[i : i + 1024] for i in range(0, len(update), 1024)]
        pointer, mark = messages.encode(pointer_to(update)), digest(update)
        await made.give("a", Kind.UPDATE, pointer)
        await made.give("a", Kind.UP_BLOB, b"short", mark, 0)
        for index, chunk in enumerate(chunks):
            await made.give("a", Kind.UP_BLOB, chunk[::-1], mark, index)
        assert made.link.receipts("a") == [], "it may have been our disk: the device keeps its update for now"
        counted = set(made.refusals())
        assert counted == {("a", Reason.WRONG_DIGEST.value), ("a", Reason.MALFORMED.value)}
        await made.give("a", Kind.UPDATE, pointer)
        for index, chunk in enumerate(chunks):
            await made.give("a", Kind.UP_BLOB, chunk, mark, index)
        assert made.link.receipts("a")[-1].status == "accepted"


async def test_wrong_bytes_twice_are_refused_for_good(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await open_round(made, "a")
        mark = digest(b"what was promised")
        pointer = BlobPointer(task="tiny", round=1, blob=BlobRef(digest=mark, size=9), chunk_bytes=1024)
        for _ in range(2):
            await made.give("a", Kind.UPDATE, messages.encode(pointer))
            await made.give("a", Kind.UP_BLOB, b"something", mark, 0)
        assert [r.reason for r in made.link.receipts("a")] == [Reason.WRONG_DIGEST]


async def test_an_upload_goes_on_after_a_restart_also_with_chunks_that_a_power_cut_emptied(tmp_path) -> None:
    update = b""
    for turn in range(3):
        async with bench(tmp_path) as made:
            base = await open_round(made, "a") if turn == 0 else made.app.driver.state.manifest
            update = update or frame(header("a", 1, base, extra={"padding": "x" * 3000}))
            chunks, mark = [update[i : i + 1024] for i in range(0, len(update), 1024)], digest(update)
            await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
            first = made.link.wants("a")[0].missing[0][0]
            assert first == (0, 1, 0)[turn]
            if turn == 0:
                await made.give("a", Kind.UP_BLOB, chunks[0], mark, 0)
            if turn == 1:
                folder = next((tmp_path / "coordinator/uploads").rglob("pointer")).parent
                for index, chunk in enumerate(chunks):
                    (folder / str(index)).write_bytes(bytes(len(chunk)))
    async with bench(tmp_path) as made:
        await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
        for index, chunk in enumerate(chunks):
            await made.give("a", Kind.UP_BLOB, chunk, mark, index)
        assert [r.status for r in made.link.receipts("a")] == ["accepted"]


async def test_an_upload_that_was_whole_before_a_restart_is_taken_at_its_pointer(tmp_path) -> None:
    async with bench(tmp_path) as made:
        update = frame(header("a", 1, await open_round(made, "a"), extra={"padding": "x" * 3000}))
        await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
        await made.give("a", Kind.UP_BLOB, update[:1024], digest(update), 0)
    [pointer] = (tmp_path / "coordinator/uploads").rglob("pointer")
    for index in range(-(-len(update) // 1024)):
        (pointer.parent / str(index)).write_bytes(update[index * 1024 : (index + 1) * 1024])
    async with bench(tmp_path) as made:
        await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
        assert made.link.wants("a") == []
        assert [r.status for r in made.link.receipts("a")] == ["accepted"]


async def test_an_upload_larger_than_the_model_needs_is_refused_at_its_pointer(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await open_round(made, "a")
        big = pointer_to(b"x", size=100 * 1024 * 1024)
        await made.give("a", Kind.UPDATE, messages.encode(big))
        assert made.link.receipts("a")[0].reason is Reason.TOO_LARGE
        late = pointer_to(b"x", round_=9)
        await made.give("a", Kind.UPDATE, messages.encode(late))
        assert made.link.receipts("a")[1].reason is Reason.WRONG_ROUND
        foreign = pointer_to(b"x").model_copy(update={"task": "other"})
        await made.give("a", Kind.UPDATE, messages.encode(foreign))
        assert made.link.receipts("a")[2].reason is Reason.UNKNOWN_TASK


async def test_uploads_of_a_round_that_is_over_are_forgotten_with_the_next_message(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base, uploads = await open_round(made, "a", "b"), made.app.receiver._uploads
        for device in "ab":
            await made.give(device, Kind.UPDATE, messages.encode(pointer_to(device.encode() * 3000)))
        assert uploads.announced_bytes == 6000
        for device in "ab":
            await made.give(device, Kind.UPDATE, frame(header(device, 1, base)))
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.give("a", Kind.UPDATE, b"nonsense")
        assert uploads.announced_bytes == 0


async def test_a_pointer_to_an_update_that_is_here_is_receipted_and_nothing_is_asked_for(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        update = frame(header("a", 1, await open_round(made, "a", "b")))
        await made.give("a", Kind.UPDATE, update)
        await made.give("a", Kind.UPDATE, messages.encode(pointer_to(update)))
        assert [r.status for r in made.link.receipts("a")] == ["accepted"] * 2
        assert made.link.wants("a") == []


async def test_a_device_speaks_for_itself_alone(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await made.give("a", Kind.STATE, messages.encode(State(status="online", device="b")))
        assert "a" not in made.app.roster
        assert "b" not in made.app.roster
        await made.online("a")
        for device, round_ in (("b", 0), ("a", 0), ("a", 99)):
            metric = Metric(device=device, round=round_, metrics={"loss": 1.0})
            await made.give("a", Kind.METRIC, messages.encode(metric))
        assert made.refusals() == {("a", "wrong_device"): 2}


async def test_random_payloads_on_every_topic_never_stop_it(tmp_path) -> None:
    rng = random.Random(1)
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        base = await open_round(made, "a", "b")
        good = [
            frame(header("a", 1, base)),
            messages.encode(pointer_to(b"x" * 5000)),
            messages.encode(State(status="online", device="a")),
            messages.encode(messages.Fetch(digest=base, first=0, count=3, chunk_bytes=1024)),
            b"\xd9\xd9\xf7" + os.urandom(40),
            b"{" * 5000,
            b"",
            os.urandom(300),
        ]
        for turn in range(250):
            payload = bytearray(rng.choice(good))
            for _ in range(rng.choice((0, 1, 3))):
                if payload:
                    payload[rng.randrange(len(payload))] = rng.randrange(256)
            kind = rng.choice([Kind.STATE, Kind.UPDATE, Kind.UP_BLOB, Kind.METRIC, Kind.FETCH, Kind.CMD])
            device = rng.choice("abx")
            if kind is Kind.UP_BLOB:
                await made.give(device, kind, bytes(payload), digest(b"x" * 5000), turn % 7)
            else:
                await made.give(device, kind, bytes(payload))
        for topic in (
            "lichen/v1/test/d/a/up/nonsense",
            "x",
            "lichen/v1/other/d/a/up/state",
            "lichen/v1/test/b/task",
        ):
            await made.raw(topic, b"{}")
        await made.online("c")
        assert "c" in made.app.roster
        assert made.refusals()


async def test_a_fault_in_the_methods_check_costs_one_update_and_not_the_fleet(tmp_path) -> None:
    class Broken(TinyServer):
        def check(self, *_: object) -> None:
            raise KeyError("a fault of ours")

    async with bench(tmp_path, server=Broken()) as made:
        base = await open_round(made, "a")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        assert made.link.receipts("a")[0].reason is Reason.MALFORMED
