"""A leader and processes that accept updates for it: each counts once, no acknowledged one is lost."""

import asyncio

import pytest
import sqlalchemy as sa

from coordinator.intake.intake_table import Intake
from coordinator.storage import schema
from protocol import messages
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef
from protocol.topics import Kind
from tests.support.coordinator.bench import Bench
from tests.support.coordinator.cluster import Worker, accepting, leading
from tests.support.coordinator.fake import TinyJobs, frame, header, tiny_task

pytestmark = [pytest.mark.asyncio, pytest.mark.both_engines]


async def collecting(lead: Bench, *devices: str) -> None:
    """Open a round with these devices."""
    await lead.online(*devices)
    await lead.phase("collecting")


def update(lead: Bench, device: str, value: float = 1.0, **changes: object) -> bytes:
    state = lead.app.driver.state
    return frame(header(device, state.round, state.manifest, **changes), value)


async def status_of(worker: Worker, device: str, payload: bytes) -> str:
    """Hand in an update; the last answer."""
    before = len(worker.link.receipts(device))
    await worker.give(device, Kind.UPDATE, payload)
    answers = worker.link.receipts(device)[before:]
    if not answers:
        return "none"
    assert answers[-1].digest == digest(payload)
    return answers[-1].reason or answers[-1].status


async def test_updates_through_two_processes_make_one_version(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 2) as (one, two):
        await collecting(lead, "ann", "bob")
        assert await status_of(one, "ann", update(lead, "ann", 1.0)) == "accepted"
        assert await status_of(two, "bob", update(lead, "bob", 3.0)) == "accepted"
        await lead.until(lambda: lead.app.driver.state.version == 1)
        whole = await lead.app.model.state()
        assert float(whole["head"]["head/w"].mean()) == pytest.approx(2.0)
        assert lead.app.storage.store.rows(sa.select(schema.arrivals)) == []


async def test_the_same_update_again_gets_its_receipt_again_and_another_one_is_refused(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 2) as (one, two):
        await collecting(lead, "ann", "bob")
        first, other = update(lead, "ann", 1.0), update(lead, "ann", 2.0)
        for worker in (one, two, one):
            assert await status_of(worker, "ann", first) == "accepted"
        for worker in (one, two):
            assert await status_of(worker, "ann", other) == "duplicate"
        await lead.until(lambda: "ann" in lead.app.driver.state.delivered)
        assert len(lead.app.driver.state.delivered) == 1


async def test_an_update_that_comes_again_in_the_next_round_gets_the_receipt_of_its_own(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 1) as [one]:
        await collecting(lead, "ann", "bob")
        first = update(lead, "ann", 1.0)
        assert await status_of(one, "ann", first) == "accepted"
        assert await status_of(one, "bob", update(lead, "bob", 3.0)) == "accepted"
        await lead.until(lambda: lead.app.driver.state.version == 1)
        await collecting(lead, "ann", "bob")
        await one.made.replica.refresh()
        assert one.made.replica.state.round == 2
        assert await status_of(one, "ann", first) == "accepted"
        assert [receipt.round for receipt in one.link.receipts("ann")] == [1, 1]


async def test_two_updates_of_a_device_at_once_through_two_processes_count_once(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 2) as workers:
        await collecting(lead, "ann", "bob")
        frames = [update(lead, "ann", value) for value in (1.0, 2.0)]
        said = await asyncio.gather(
            *(status_of(worker, "ann", one) for worker, one in zip(workers, frames, strict=True))
        )
        assert sorted(said) == ["accepted", "duplicate"]
        rows = lead.app.storage.store.rows(sa.select(schema.updates.c.digest))
        assert [row["digest"] for row in rows] == [digest(frames[said.index("accepted")])]


async def test_many_updates_at_once_that_come_sooner_than_the_news_of_their_round_are_accepted(tmp_path):
    names = [f"d{n}" for n in range(8)]
    task = tiny_task(min_devices=len(names))
    async with leading(tmp_path, task) as lead, accepting(tmp_path, 1, task) as [one]:
        known = one.made.replica.state
        await collecting(lead, *names)
        lead.app.storage.ledger.save()
        await one.made.devices.open()
        one.made.replica.state = known  # as if the journal had not been read since
        one.made.replica._last = 0
        said = await asyncio.gather(*(status_of(one, name, update(lead, name)) for name in names))
        assert said == ["accepted"] * len(names)


async def test_a_closed_round_accepts_nothing_and_says_so(tmp_path):
    async with (
        leading(tmp_path, tiny_task(count=1)) as lead,
        accepting(tmp_path, 1, tiny_task(count=1)) as [one],
    ):
        await collecting(lead, "ann")
        late = update(lead, "ann", 2.0)
        assert await status_of(one, "ann", update(lead, "ann", 1.0)) == "accepted"
        await lead.until(lambda: lead.app.driver.state.version == 1)
        assert await status_of(one, "ann", late) in {"duplicate", "wrong_round"}


async def test_what_was_accepted_before_the_end_counts_even_if_the_leader_has_not_looked(tmp_path):
    """The quorum is one device: the second one's receipt is out before the leader counts the first."""
    task = tiny_task(quorum=0.5, min_devices=1)
    async with leading(tmp_path, task) as lead, accepting(tmp_path, 1, task) as [one]:
        await collecting(lead, "ann", "bob")
        async with lead.app.driver._lock:  # the leader looks at nothing meanwhile
            assert await status_of(one, "ann", update(lead, "ann", 1.0)) == "accepted"
            assert await status_of(one, "bob", update(lead, "bob", 3.0)) == "accepted"
        await lead.until(lambda: lead.app.driver.state.version == 1)
        whole = await lead.app.model.state()
        assert float(whole["head"]["head/w"].mean()) == pytest.approx(2.0)


async def test_while_the_leader_closes_a_round_nothing_is_answered_and_nothing_accepted(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 1) as [one]:
        await collecting(lead, "ann", "bob")
        table = lead.app.driver.outside._table
        table.close(lead.app.driver.state.round)
        assert table.read().taking is False
        assert await status_of(one, "ann", update(lead, "ann")) == "none"
        assert lead.app.storage.store.rows(sa.select(schema.updates)) == []
        table.write(Intake(lead.app.driver.state.round, lead.app.driver.state.manifest, taking=True))
        assert await status_of(one, "ann", update(lead, "ann")) == "accepted"


async def test_a_spoiled_update_is_not_waited_for(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 1) as [one]:
        await collecting(lead, "ann", "bob")
        assert await status_of(one, "ann", update(lead, "ann", 1e6)) == "out_of_bounds"
        await lead.until(lambda: "ann" in lead.app.driver.state.refused)


async def test_an_unknown_device_is_refused_and_one_that_the_leader_has_just_registered_is_not(tmp_path):
    async with leading(tmp_path) as lead, accepting(tmp_path, 1) as [one]:
        await collecting(lead, "ann")
        assert await status_of(one, "eve", update(lead, "eve")) == "unknown_device"
        await lead.online("bob")
        lead.app.storage.ledger.save()
        assert await status_of(one, "bob", update(lead, "bob")) == "accepted"


async def test_the_next_leader_counts_what_was_accepted_without_one(tmp_path):
    async with accepting(tmp_path, 1) as [one]:
        async with leading(tmp_path, holder="first") as lead:
            await collecting(lead, "ann", "bob")
            frames = {device: update(lead, device, value) for device, value in (("ann", 1.0), ("bob", 3.0))}
            epoch = lead.app.storage.store.rows(sa.select(schema.leases.c.epoch))[0]["epoch"]
        for device, payload in frames.items():  # nobody leads
            assert await status_of(one, device, payload) == "accepted"
        async with leading(tmp_path, holder="second") as lead:
            await lead.until(lambda: lead.app.driver.state.version == 1)
            whole = await lead.app.model.state()
            assert float(whole["head"]["head/w"].mean()) == pytest.approx(2.0)
            assert lead.app.storage.store.rows(sa.select(schema.leases.c.epoch))[0]["epoch"] == epoch + 1


async def test_the_chunks_of_an_update_may_come_to_any_process(tmp_path):
    jobs = TinyJobs(size=2000)
    async with leading(tmp_path, jobs=jobs) as lead, accepting(tmp_path, 2) as (one, two):
        await collecting(lead, "ann", "bob")
        state = lead.app.driver.state
        payload = frame(header("ann", state.round, state.manifest), 2.0, size=2000)
        blob = BlobRef(digest=digest(payload), size=len(payload))
        pointer = BlobPointer(task="tiny", round=state.round, blob=blob, chunk_bytes=1024)
        await one.give("ann", Kind.UPDATE, messages.encode(pointer))
        assert len(one.link.wants("ann")) == 1
        chunks = [payload[at : at + 1024] for at in range(0, len(payload), 1024)]
        for index, chunk in enumerate(chunks):
            await (one, two)[index % 2].give("ann", Kind.UP_BLOB, chunk, blob.digest, index)
        answers = [*one.link.receipts("ann"), *two.link.receipts("ann")]
        assert [answer.status for answer in answers] == ["accepted"]
        await lead.until(lambda: "ann" in lead.app.driver.state.delivered)
