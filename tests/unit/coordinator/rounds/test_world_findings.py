"""What the simulated world found, each on its own."""

import errno
import os
import sqlite3

import numpy as np
import pytest
from structlog.testing import capture_logs

from coordinator.admission.quarantine import Quarantine
from coordinator.config.coordinator import QuarantineSettings
from coordinator.round_machine.events import RoundPhase, RoundState, RoundTick, Rules
from coordinator.round_machine.table import apply
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer as Refusals
from edge_agent.messaging import state_reporter
from edge_agent.storage.round_ledger import FINAL_RETRY_S, RoundLedger
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import BlobRef, Offer, Receipt, State, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Kind, broadcast_topic
from runtime.mqtt.link import Message
from runtime.storage import sqlite_writer
from runtime.storage.blob_store import BlobStore
from runtime.storage.disk import DISK, Disk
from runtime.storage.spool import Spool
from tests.support.agent.data import toy_task
from tests.support.agent.link import FakeLink
from tests.support.agent.parts import reporter_of
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import ANYBODY, FLEET, frame, header, tiny_task
from tests.unit.edge_agent.messaging.test_agent_session import make

RULES = QuarantineSettings(refusals=1, first_s=600.0)


class ReadOnly(Disk):
    def unlink(self, path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@pytest.fixture
def read_only():
    token = DISK.set(ReadOnly())
    yield
    DISK.reset(token)


def test_world_a_read_only_disk_under_the_spool_is_waited_for(tmp_path, monkeypatch) -> None:
    """A receipt that could not be noted ended the agent with status 70."""
    held = Spool(tmp_path / "spool.sqlite3", 1 << 20)
    held.put(task="t", round_=1, digest="a" * 64, payload=b"x", carry=None)

    def refuse(_path) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_writer, "before_commit", refuse)
        with pytest.raises(Transient, match="readonly"):
            held.clear("a" * 64)
    assert held.clear("a" * 64), "it is still there, and goes once the disk is well"
    held.close()


@pytest.mark.usefixtures("read_only")
def test_world_a_partial_download_on_a_read_only_disk_says_so(tmp_path) -> None:
    """It was an OSError, which ends the agent with status 70."""
    with pytest.raises(Misconfigured, match=r"the disk of .* is read-only"):
        BlobStore(tmp_path).partial(BlobRef(digest="a" * 64, size=3000), 1024)


def test_world_a_quarantine_ends_in_its_time_also_where_the_clock_was_set_back(tmp_path) -> None:
    """The time left was bounded at each look, so it stayed the same until the old date came again."""
    clock, wall = ManualClock(), [2e9]
    with Database(tmp_path / "coordinator.sqlite3") as store:
        ledger = Refusals(store, clock)
        standing = Quarantine(store, ledger, lambda: wall[0], RULES, **ANYBODY)
        standing.refused("dev", Refused(Reason.MALFORMED, "bits"))
        wall[0] -= 86400.0
        assert "600 s" in str(standing.denial("dev"))
        ledger.save()
        again = Quarantine(store, ledger, lambda: wall[0], RULES, **ANYBODY)
        wall[0] += 599.0
        assert standing.denial("dev") is not None
        assert again.denial("dev") is not None
        wall[0] += 2.0
        assert standing.denial("dev") is None
        assert again.denial("dev") is None, "the new end is kept on disk"


def test_world_a_round_that_nobody_else_can_finish_asks_the_refused_once_more() -> None:
    """Refused devices were left out of a round for good: with too few others it never ended."""
    rules = Rules(rounds=1, deadline_s=10.0, min_devices=2)
    refused = (("dev-1", "malformed"), ("dev-2", "quarantined"))
    state = RoundState(phase=RoundPhase.WAITING, round=1, version=0, refused=refused, since=100.0)
    waiting, commands = apply(rules, state, RoundTick(able=1, present=1, settled=True), 399.0)
    assert (waiting, commands) == (state, ())
    forgiven, _ = apply(rules, state, RoundTick(able=1, present=1, settled=True), 400.0)
    assert forgiven.refused == {}


def test_world_nobody_is_forgiven_while_the_round_can_go_on_without_them() -> None:
    rules = Rules(rounds=1, deadline_s=10.0, min_devices=1)
    state = RoundState(phase=RoundPhase.WAITING, round=1, version=0, refused=(("dev-1", "malformed"),))
    after, commands = apply(rules, state, RoundTick(able=1, present=1, settled=True), 1e6)
    assert after.refused == state.refused
    assert commands, "the round opens with the other"


async def test_world_an_offer_that_comes_long_after_a_final_refusal_is_tried(tmp_path) -> None:
    clock = ManualClock()
    ledger = RoundLedger(tmp_path / "rounds.json", clock)
    offer = Offer(task="t", round=1, base="b" * 64, base_size=1, closes_in_s=10.0)
    ledger.record_spooled(offer, "a" * 64)
    ledger.settle(
        Receipt(task="t", round=1, digest="a" * 64, status="refused", reason=Reason.MALFORMED, detail="bits")
    )
    assert ledger.reason_to_skip(offer)
    await clock.advance(FINAL_RETRY_S - 1)
    assert ledger.reason_to_skip(offer)
    await clock.advance(2)
    assert not ledger.reason_to_skip(offer)


async def test_world_an_agent_without_task_connects_anew(settings_of_agent) -> None:
    """The announcement is retained: one that was lost or damaged on its way comes with a new connection."""
    clock, asked, link = ManualClock(), [], FakeLink()
    link.reconnect = asked.append
    made = reporter_of(settings_of_agent, link, clock)
    made._request_missing_task()
    await clock.advance(state_reporter._TASKLESS_S - 1)
    made._request_missing_task()
    assert asked == []
    await clock.advance(1)
    made._request_missing_task()
    made._request_missing_task()
    assert len(asked) == 1
    link.connected = False  # as it is for a moment after each asking
    made._request_missing_task()
    link.connected = True
    await clock.advance(state_reporter._TASKLESS_S)
    made._request_missing_task()
    assert len(asked) == 1, "each time it waits twice as long"
    await clock.advance(state_reporter._TASKLESS_S)
    made._request_missing_task()
    assert len(asked) == 2


async def test_world_an_announcement_that_was_damaged_on_its_way_takes_nobody_from_the_task(tmp_path) -> None:
    """Devices that had the task refused it for good: the broker retained the damaged bytes."""
    agent = make(tmp_path)
    topic = broadcast_topic("fleet", Kind.TASK)
    sound = TaskAnnouncement.of(toy_task())
    await agent.dispatcher.handle(Message(topic, encode(sound)))
    outer = encode(sound).replace(b'"kind"', b'"ki\xffnd"')
    inner = encode(sound.model_copy(update={"task": sound.task.replace("{", "[", 1)}))
    for damaged in (outer, inner):
        with pytest.raises(Refused) as caught:
            await agent.dispatcher.handle(Message(topic, damaged))
        assert caught.value.reason is Reason.MALFORMED
        assert agent.tasks.task_mismatch == ""
    with pytest.raises(Refused, match="task"):
        await agent.dispatcher.handle(Message(topic, b'{"kind": "task", "tasks": []}'))
    assert agent.tasks.task_mismatch, "JSON that cannot be read is of another release"


async def test_world_a_device_that_goes_on_refusing_is_given_the_task_again_ever_less_often(tmp_path) -> None:
    """What it read may have been damaged; what it lacks may be a sensor, and then there is no end of it."""
    async with bench(tmp_path) as made:
        announcer, clock = made.app.announcer, ManualClock()
        announcer.clock = clock
        announcer._task_said, announcer._task_pause_s = clock.now(), 30.0
        made.link.sent.clear()
        said = []
        for number in range(40):
            if number < 2:
                await made.online("a", refuses="the task cannot be read")
            else:
                announcer.on_device_without_task("a")
            await clock.advance(30.0)
            await announcer._repeat_task()
            said.append(sum(topic == broadcast_topic(FLEET, Kind.TASK) for topic, _, _ in made.link.sent))
        assert said[0] == 0, "once is no sign of anything"
        assert said[5] >= 1
        assert 3 <= said[-1] <= 6


def test_world_an_unchanged_state_is_said_again_now_and_then(settings_of_agent) -> None:
    clock = ManualClock()
    made = reporter_of(settings_of_agent, FakeLink(), clock)
    state = made.state()
    assert isinstance(state, State)
    made._sent, made._sent_at = state, 0.0
    assert not made.is_due(state)
    clock._now = settings_of_agent.state_idle_s
    assert made.is_due(state)


@pytest.fixture
def settings_of_agent(tmp_path):
    from edge_agent.config.agent import AgentSettings  # noqa: PLC0415 - only here

    return AgentSettings(fleet="f", device="d", state_dir=tmp_path, cache_dir=tmp_path)


async def test_world_the_task_is_announced_again_to_a_device_that_lacks_it(tmp_path) -> None:
    async with bench(tmp_path) as made:
        made.app.announcer._task_pause_s = 0.0
        before = sum(topic.endswith("b/task") for topic, *_ in made.link.sent)
        await made.online("a", modalities={}, windows=0)
        await made.online("a", modalities={}, windows=0)
        await made.until(lambda: sum(topic.endswith("b/task") for topic, *_ in made.link.sent) > before)
        assert all(retain for topic, _, retain in made.link.sent if topic.endswith("b/task"))


async def test_world_what_counts_is_not_refused_because_its_device_is_barred_now(tmp_path) -> None:
    quick = {"refusals": 1, "first_s": 600.0}
    async with bench(tmp_path, tiny_task(min_devices=2, count=1), quarantine=quick) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        good = frame(header("a", 1, base))
        await made.give("a", Kind.UPDATE, good)
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base), tensors={"head/w": np.full(64, 2e4)}))
        made.app.quarantine.refused("a", Refused(Reason.MALFORMED, "bits"))
        assert made.app.access.denial("a") is not None
        await made.give("a", Kind.UPDATE, good)
        assert made.link.receipts("a")[-1].status == "accepted"


async def test_world_an_index_that_rotted_is_found_at_the_start_and_salvaged(tmp_path) -> None:
    """quick_check passes over indexes; the first look-up ended the coordinator, at each start."""
    async with bench(tmp_path):
        pass
    path = tmp_path / "coordinator" / "coordinator.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        page = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'meta'"
        ).fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    data[page * size - 3] ^= 0xFF  # the first key that was written lies at the page's end
    path.write_bytes(data)
    with capture_logs() as said:
        async with bench(tmp_path) as made:
            assert made.app.storage.store.get_meta("task") is not None
    assert "database_salvaged" in {line["event"] for line in said}
