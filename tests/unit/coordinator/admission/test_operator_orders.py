"""Orders of operators reach a running coordinator: rounds held, resumed and ended, a device asked."""

import pytest

from coordinator.actions import devices, rounds
from coordinator.admission.operator_orders import SEND_STATE, OperatorOrders, read_order, request
from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog, read_log, verify_log
from coordinator.config.coordinator import load_settings
from coordinator.storage.location import Location
from protocol.errors import Refused, Transient
from protocol.messages import Command
from protocol.topics import Kind
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, settings_for, tiny_task
from tests.support.services import beside, until

pytestmark = pytest.mark.both_engines

ANN = Person("ann", "operator", "test")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("coordinator.admission.operator_orders.REFRESH_S", 0.05)


async def deliver(made, *names: str) -> None:
    state = made.app.driver.state
    for name in names:
        await made.give(name, Kind.UPDATE, frame(header(name, state.round, state.manifest)))


async def test_held_rounds_are_not_opened_and_an_open_one_goes_on(tmp_path):
    async with bench(tmp_path, tiny_task(count=3, deadline_s=3600.0), spread_s=0.0) as made:
        app = made.app
        await made.online("a", "b")
        await made.phase("collecting")
        rounds.hold(app.settings, ANN, "the stable is being cleaned")
        await made.until(app.orders.hold)
        await deliver(made, "a", "b")
        await made.until(lambda: app.driver.state.version == 1)
        await made.phase("waiting_for_devices")
        assert not app.fleet.may_select()
        words = "not opened: ann holds the rounds: the stable is being cleaned"
        assert words in app.driver.why()
        with pytest.raises(Refused, match="ann holds the rounds"):
            rounds.hold(app.settings, Person("bob", "operator", "test"))
        assert read_order(app.settings.location).wait().what == "hold"
        rounds.resume(app.settings, ANN)
        await made.phase("collecting")
        assert app.driver.state.round == 2


async def test_a_hold_stands_over_a_restart(tmp_path):
    settings = settings_for(tmp_path, 1)
    async with bench(tmp_path, tiny_task(count=2), spread_s=0.0):
        rounds.hold(settings, ANN)
    async with bench(tmp_path, tiny_task(count=2), spread_s=0.0) as made:
        assert made.app.orders.hold() == "ann holds the rounds"
        await made.online("a", "b")
        assert made.app.driver.state.phase == "waiting_for_devices"
        rounds.resume(settings, ANN)
        await made.phase("collecting")


async def test_ended_rounds_close_with_who_is_here_and_stay_ended(tmp_path):
    task = tiny_task(count=5, deadline_s=3600.0)
    async with bench(tmp_path, task, spread_s=0.0) as made:
        app = made.app
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
        rounds.end(app.settings, ANN, "good enough")
        await made.phase("done")
        assert (app.driver.state.version, app.driver.state.ended) == (1, "ann ended the rounds: good enough")
        assert "the rounds are over (ann ended the rounds: good enough); version 1" in app.driver.why()
        with pytest.raises(Refused, match="there is nothing to hold"):
            rounds.hold(app.settings, ANN)
    async with bench(tmp_path, task, spread_s=0.0) as made:
        await made.online("a", "b")
        await made.phase("done")
        assert made.app.driver.state.version == 1
        assert rounds.resume(made.app.settings, ANN).state == "ended"
    async with bench(tmp_path, task, spread_s=0.0) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        assert made.app.driver.state.round == 2


async def test_a_device_is_asked_for_its_state_by_the_running_coordinator(tmp_path):
    settings = settings_for(tmp_path, 1)
    async with bench(tmp_path) as made:
        await made.online("a")
        made.app.storage.ledger.save()
        devices.ask_state(settings, ANN, "a")
        devices.ask_state(settings, ANN, "a")
        asked = lambda: [m for m in made.link.to("a", Kind.CMD) if isinstance(m, Command)]  # noqa: E731
        await made.until(asked)
        assert {one.command for one in asked()} == {"send_state"}
        with pytest.raises(Refused, match="no device b"):
            devices.ask_state(settings, ANN, "b")
    with pytest.raises(Transient, match="no coordinator runs"):
        devices.ask_state(settings, ANN, "a")
    rows = read_log(settings.location)
    assert [one.action for one in rows] == ["device.ask_state"] * 8
    assert verify_log(settings.location).row is None


async def test_a_request_that_was_taken_in_vain_is_taken_again(tmp_path, monkeypatch):
    """Its removal is not on disk: a full disk, a server that went away."""
    location = settings_for(tmp_path, 1).location
    location.state_dir.mkdir(exist_ok=True)
    with AuditLog(location) as log:
        request(log, "a", SEND_STATE)
    shared = Location.shared
    failures = iter([Transient("no space left on the disk")])

    def commits(_: object) -> None:
        for error in failures:
            raise error

    monkeypatch.setattr(Location, "shared", lambda self, design: shared(self, design, fence=commits))
    sent: list[str] = []
    orders = OperatorOrders(location, SystemClock())

    async def end(_: str) -> None:
        raise AssertionError("nobody ended the rounds")

    async with beside(lambda: orders.run(end, lambda device, *_: sent.append(device)), forever=True):
        await until(lambda: sent == ["a"])
    orders.close()


def test_no_coordinator_ever_ran_here(tmp_path):
    file = tmp_path / "coordinator.toml"
    file.write_text('fleet = "test"\nstate_dir = "nowhere"\ntask = "task.toml"\n')
    with pytest.raises(Refused, match="has this coordinator ever run"):
        rounds.hold(load_settings(file), ANN)
    assert not (tmp_path / "nowhere").exists()
