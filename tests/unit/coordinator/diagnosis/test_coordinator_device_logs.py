"""An operator asks a device for its log lines; only the answer to a question is stored, within bounds."""

import time

import pytest

from coordinator.actions import devices
from coordinator.audit.chain import Person
from coordinator.audit.log import read_log
from coordinator.diagnosis import device_logs
from coordinator.diagnosis.log_receiver import LogReceiver
from coordinator.storage.engines.shared_tables import Design, SharedTables
from coordinator.storage.location import Location
from protocol.errors import Refused, Transient
from protocol.log_lines import MAX_LOG_BYTES, LogLine, LogLines
from protocol.messages import Command, encode
from protocol.topics import Kind, Route
from runtime.mqtt.link import Message
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.cluster import accepting, leading
from tests.support.coordinator.fake import settings_for

pytestmark = pytest.mark.both_engines
ANN = Person("ann", "operator", "test")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("coordinator.admission.operator_orders.REFRESH_S", 0.05)
    monkeypatch.setattr("coordinator.diagnosis.log_receiver._LOOK_S", 0.0)


def said(device: str, *texts: str) -> LogLines:
    return LogLines(device=device, lines=tuple(LogLine(at=1.0, level="info", text=text) for text in texts))


def commands(made, device: str) -> list[str]:
    return [one.command for one in made.link.to(device, Kind.CMD) if isinstance(one, Command)]


async def test_the_answer_to_a_question_is_stored_and_no_other(tmp_path):
    settings = settings_for(tmp_path, 1)
    async with bench(tmp_path) as made:
        await made.online("a", "b")
        made.app.storage.ledger.save()
        await made.give("a", Kind.LOG, encode(said("a", "nobody asked")))
        assert devices.last_logs(settings, "a", time.time()) is None
        asked = devices.ask_logs(settings, ANN, "a")
        await made.until(lambda: commands(made, "a") == ["send_logs"])
        with pytest.raises(Refused, match="was asked 0 s ago"):
            devices.ask_logs(settings, ANN, "a")
        await made.give("b", Kind.LOG, encode(said("b", "nobody asked b")))
        await made.give("b", Kind.LOG, encode(said("a", "b speaks for a")))
        waiting = devices.last_logs(settings, "a", time.time())
        assert waiting == device_logs.LogAnswer(asked, waits=True)
        await made.give("a", Kind.LOG, encode(said("a", "hot", "hotter")))
        await made.give("a", Kind.LOG, encode(said("a", "a second answer")))
        found = devices.last_logs(settings, "a", time.time())
        assert found.lines == said("a", "hot", "hotter")
        assert found.answered >= asked
        assert not found.waits
        assert devices.last_logs(settings, "b", time.time()) is None
        assert devices.last_logs(settings, "a", time.time() + device_logs.KEEP_S + 1) is None
        with pytest.raises(Refused, match="no device z"):
            devices.ask_logs(settings, ANN, "z")
        devices.forget(settings, ANN, "a", force=True)
        assert devices.last_logs(settings, "a", time.time()) is None
    with pytest.raises(Transient, match="no coordinator runs"):
        devices.ask_logs(settings, ANN, "b")
    actions = [(row.action, row.target) for row in read_log(settings.location)]
    assert actions[:2] == [("device.ask_logs", "a")] * 2


async def test_an_answer_that_is_wrong_or_large_is_refused_and_the_question_stays_open(tmp_path):
    settings = settings_for(tmp_path, 1)
    async with bench(tmp_path) as made:
        await made.online("a")
        made.app.storage.ledger.save()
        devices.ask_logs(settings, ANN, "a")
        await made.give("a", Kind.LOG, b" " * (MAX_LOG_BYTES + 1))
        await made.give("a", Kind.LOG, b'{"kind": "log", "device": "a", "lines": [{"text": "\\u001b[2J"}]}')
        assert made.refusals() == {("a", "too_large"): 1, ("a", "malformed"): 1}
        assert devices.last_logs(settings, "a", time.time()).waits
        await made.give("a", Kind.LOG, encode(LogLines(device="a", refused="not permitted")))
        assert devices.last_logs(settings, "a", time.time()).lines.refused == "not permitted"


async def test_a_process_of_a_cluster_stores_what_the_leader_asked_for(tmp_path):
    settings = settings_for(tmp_path, 1)
    async with leading(tmp_path) as leader, accepting(tmp_path, 1) as (worker,):
        await leader.online("a")
        leader.app.storage.ledger.save()
        await worker.made.devices.open()
        devices.ask_logs(settings, ANN, "a")
        await leader.until(lambda: commands(leader, "a") == ["send_logs"])
        await worker.give("a", Kind.LOG, encode(said("a", "through another process")))
        assert devices.last_logs(settings, "a", time.time()).lines == said("a", "through another process")


async def test_where_the_tables_are_away_not_every_message_waits_for_them(tmp_path, monkeypatch):
    """Lanes of all devices wait for one another here: a look at tables that are away takes seconds."""
    monkeypatch.setattr("coordinator.diagnosis.log_receiver._LOOK_S", 0.5)
    looks = []

    def away(_: Location, design: Design) -> SharedTables:
        looks.append(design.file)
        raise Transient("the tables are away")

    monkeypatch.setattr(Location, "has", lambda *_: True)
    monkeypatch.setattr(Location, "shared", away)
    clock = ManualClock()
    receiver = LogReceiver(settings_for(tmp_path, 1).location, {"a"}, clock)
    route, message = Route("test", Kind.LOG, "a"), Message("test", encode(said("a", "nobody asked")))
    for _ in range(2):
        with pytest.raises(Transient, match="are away"):
            await receiver.on_log(route, message)
        for _ in range(5):
            assert not await receiver.on_log(route, message)
        await clock.advance(1.0)
    assert len(looks) == 2


def test_answers_are_bounded_in_number_and_age(tmp_path):
    location = settings_for(tmp_path, 1).location
    (tmp_path / "state").mkdir(exist_ok=True)
    for n in range(device_logs.MAX_DEVICES + 5):
        device_logs.ask(location, f"d{n}", 1000.0 + n)
    assert device_logs.read(location, "d4", 1100.0) is None
    assert device_logs.read(location, "d5", 1100.0) is not None
    device_logs.ask(location, "late", 1000.0 + 2 * device_logs.KEEP_S)
    assert device_logs.read(location, "d60", 1100.0) is None
    assert device_logs.read(location, "late", 1000.0 + 2 * device_logs.KEEP_S).waits
