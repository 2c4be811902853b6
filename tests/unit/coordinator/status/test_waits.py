"""Every wait is named with since when and until when: on both sides, for people and in JSON."""

import json
import os
import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coordinator.app import link_of
from coordinator.cli import status
from coordinator.cli.main import app as coordinator_app
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from coordinator.rounds.progress import FleetStatus
from coordinator.status.waits import CoordinatorStatus
from coordinator.status.waits import waits as coordinator_waits
from edge_agent.cli import main as agent_cli
from edge_agent.config.agent import read
from edge_agent.opening import open_agent
from edge_agent.status import status_file as agent_status
from edge_agent.storage.agent_storage import LOCK_FILE
from edge_agent.windows.workspace import WindowWorkspace
from protocol.topics import Kind
from runtime.clock import SystemClock
from runtime.storage.folder_lock import FolderLock
from runtime.waits import StatusText, Wait, lines, span
from runtime.waits import read as read_waits
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import FakeLink, bench
from tests.support.coordinator.fake import settings_for, tiny_task
from tests.unit.edge_agent.messaging.test_agent_session import config

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3_725, "1 h 2 min"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations_in_their_two_largest_units(seconds, words):
    assert span(seconds) == words


def test_a_line_says_since_when_and_until_when():
    wait = Wait("broker", "connection refused", NOW - 200, NOW + 30, "it is tried again")
    (line,) = lines([wait], NOW)
    assert line == (
        "broker: connection refused (for 3 min 20 s, since 2023-11-14 22:10:00+00:00; "
        "in 30 s it is tried again, at 2023-11-14 22:13:50+00:00)"
    )
    assert "now it is tried again" in lines([wait], NOW + 31)[0]
    assert (
        "until enough devices are eligible"
        in lines([Wait("x", "y", None, None, "until enough devices are eligible")], 0)[0]
    )
    assert lines([], NOW) == ["waits for nothing"]
    assert wait.as_json(NOW) == {
        "what": "broker", "why": "connection refused", "since": NOW - 200, "until": NOW + 30,
        "then": "it is tried again", "waited_s": 200.0, "left_s": 30.0,
    }  # fmt: skip


def test_waits_of_other_releases_and_broken_ones_do_no_harm():
    told = [{"what": "a", "why": "b", "since": 1.0, "colour": "red"}, {"what": "half"}, "nothing"]
    assert read_waits(told) == [Wait("a", "b", 1.0)]
    assert read_waits(None) == read_waits({"a": 1}) == []


async def test_an_explained_service_keeps_since_while_it_says_the_same():
    clock = ManualClock()
    doing = StatusText(clock, "nothing yet")
    await clock.advance(5)
    doing.say("fetching", 30)
    began = clock.wall()
    assert (doing.since, doing.until) == (began, began + 30)
    await clock.advance(7)
    doing.say("fetching", 30)
    assert (doing.since, doing.until) == (began, began + 37)
    doing.why = "fetching"
    assert doing.until == began + 37
    doing.why = "done"
    assert (doing.since, doing.until) == (clock.wall(), None)


async def test_a_clock_that_is_set_does_not_make_a_wait_a_year_long():
    clock = ManualClock()
    doing = StatusText(clock, "training")
    await clock.advance(5)
    clock.set_wall(clock.wall() + 365 * 86400)  # the time service came late
    assert clock.wall() - doing.since == 5


def working(store):
    """A workspace of windows as its waits see it."""
    return SimpleNamespace(task=None, problem=lambda: WindowWorkspace.problem(SimpleNamespace(store=store)))


WELL = SimpleNamespace(trouble=None)


def never(*_args, **_options):
    raise AssertionError("nothing runs here")


@contextmanager
def agent(folder, store=WELL, **settings):
    """A real agent that nothing is wrong with."""
    clock, up = ManualClock(), SimpleNamespace(connected=True, why="connected", since=NOW, until=None)
    clock.set_wall(NOW - 60)
    up.publish = up.reconnect = up.run = up.messages = never
    chosen = read(config(folder, **{"roles": ["observe", "prototype"]} | settings))
    chosen.state_dir.mkdir(exist_ok=True)
    made = open_agent(chosen, [], clock, make_link=lambda *_a, **_o: up)
    clock.set_wall(NOW)
    made.tasks.workspace = None if store is None else working(store)
    made.inference._model = "a model"
    made.dispatcher.contact.last_heard = NOW - 20
    try:
        yield made
    finally:
        made.storage.close()


def test_an_idle_agent_waits_for_an_offer_and_nothing_else(tmp_path):
    with agent(tmp_path) as idle:
        (wait,) = idle.report.waits()
    assert (wait.what, wait.why, wait.until) == ("round", "no offer yet", None)
    assert "until the coordinator offers a round" in wait.then


def test_an_agent_that_only_observes_waits_for_no_offer(tmp_path):
    with agent(tmp_path, roles=["observe"]) as idle:
        assert idle.report.waits() == []


def test_each_trouble_of_an_agent_is_a_wait_of_its_own(tmp_path):
    with agent(tmp_path, SimpleNamespace(trouble=(NOW - 9, "no space left"))) as bad:
        vars(bad.link).update(connected=False, why="connection refused", since=NOW - 50, until=NOW + 3)
        bad.learner.learning.say("training round 4", 595)
        vars(bad.outbox).update(waiting=2, oldest=NOW - 400, again_at=NOW + 8, last_refusal="wrong_round: x")
        bad.deployment.say("fetching version 3", 300)
        vars(bad.renewal).update(why="not renewed yet", since=NOW - 70, until=NOW + 60)
        found = {wait.what: wait for wait in bad.report.waits()}
    assert list(found) == ["broker", "certificate", "disk", "round", "receipt", "model"]
    assert (found["broker"].since, found["broker"].until) == (NOW - 50, NOW + 3)
    assert (found["certificate"].since, found["certificate"].until) == (NOW - 70, NOW + 60)
    assert found["disk"].since == NOW - 9
    assert found["round"].until == NOW + 595
    assert found["model"].until == NOW + 300
    assert (found["receipt"].since, found["receipt"].until) == (NOW - 400, NOW + 8)
    assert "2 updates have no receipt" in found["receipt"].why
    assert "wrong_round: x" in found["receipt"].why


def test_without_a_task_the_agent_waits_for_one_since_its_start(tmp_path):
    with agent(tmp_path, None) as made:
        (task, _) = made.report.waits()
    assert (task.what, task.since) == ("task", NOW - 60)


def test_an_update_without_a_receipt_names_the_coordinator_once_it_is_silent(tmp_path):
    with agent(tmp_path) as made:
        vars(made.outbox).update(waiting=1, oldest=NOW - 400, again_at=NOW + 8)

        def told(heard):
            made.dispatcher.contact.last_heard = heard
            (wait,) = made.report.waits()
            return wait.why

        assert told(NOW - 5) == "an update has no receipt"
        silent = told(NOW - 300)
        assert "is the coordinator running? (lichen status)" in silent
        assert "last heard 2023-11-14 22:08:20" in silent
        made.outbox.again_at = NOW + 108
        assert "nothing was heard of it since the agent started" in told(None)
        made.dispatcher.contact.last_heard, made.link.connected = NOW - 300, False
        assert "coordinator" not in made.report.waits()[-1].why, "without a broker nobody can tell"


def test_an_idle_agent_says_when_the_coordinator_was_last_heard(tmp_path):
    with agent(tmp_path) as idle:
        assert "last heard 2023-11-14 22:13:00" in idle.report.waits()[0].then


def kept(path, **fields):
    settings = read(path)
    for folder in (settings.state_dir, settings.cache_dir):
        folder.mkdir(exist_ok=True)
    told = {
        "pid": os.getpid(),
        "wall": NOW,
        "device": "d",
        "waits": [{"what": "broker", "why": "refused", "since": NOW}],
    }
    (settings.cache_dir / agent_status.STATUS_FILE).write_text(json.dumps(told | fields))
    return settings


def test_agent_status_why_for_people_and_programs(tmp_path):
    path = config(tmp_path)
    settings = kept(path, wall=SystemClock().wall())
    owner = FolderLock(settings.state_dir / LOCK_FILE, "agent")
    try:
        said = CliRunner().invoke(agent_cli.app, ["status", "--why", "--config", str(path)])
        assert said.exit_code == 0
        assert re.fullmatch("agent: running, as it was .+ ago", said.stdout.splitlines()[0])
        assert said.stdout.splitlines()[1].startswith("broker: refused (for ")
        told = CliRunner().invoke(
            agent_cli.app, ["status", "--why", "--config", str(path), "--format", "json"]
        )
        (wait,) = json.loads(told.stdout)["waits"]
        assert wait["waited_s"] > 0
        assert wait["left_s"] is None
        whole = CliRunner().invoke(agent_cli.app, ["status", "--config", str(path)])
        assert "broker: refused" in whole.stdout
    finally:
        owner.close()
    dead = CliRunner().invoke(agent_cli.app, ["status", "--why", "--config", str(path)])
    assert dead.exit_code == 69
    assert "agent: it does not run (for " in dead.stdout
    assert "broker: refused" not in dead.stdout, "what it waited for when it lived is over"


RULES = Rules(rounds=5, deadline_s=100, min_devices=2, spread_s=4)


def picture(state, **changes):
    outlook = FleetStatus(able=frozenset({"a"}), lacks={"b": "offline"}, known=2)
    return CoordinatorStatus(
        **{"rules": RULES, "state": state, "outlook": outlook, "now": NOW, "worker_s": 600} | changes
    )


def test_a_collecting_coordinator_names_each_missing_device_until_the_deadline():
    state = RoundState(
        phase=RoundPhase.COLLECTING,
        round=3,
        selected=("a", "b", "c"),
        delivered=("a",),
        since=NOW - 20,
        until=NOW + 80,
    )
    found = coordinator_waits(picture(state))
    assert [wait.what for wait in found] == ["updates", "update of b", "update of c"]
    assert {(wait.since, wait.until) for wait in found} == {(NOW - 20, NOW + 80)}
    assert found[1].why == "offline"
    assert "1 of 3 updates here" in found[0].why


def test_a_coordinator_without_devices_broker_or_worker_says_which():
    waiting = RoundState(phase=RoundPhase.WAITING, round=1, since=NOW - 7)
    (wait,) = coordinator_waits(picture(waiting))
    assert (wait.what, wait.since, wait.until) == ("devices", NOW - 7, None)
    enough = waiting.model_copy(update={"enough_since": NOW - 1})
    assert coordinator_waits(picture(enough))[0].until == NOW + 3
    working = RoundState(phase=RoundPhase.AGGREGATING, round=1, since=NOW - 7)
    assert coordinator_waits(picture(working))[0].until == NOW + 593
    failed = working.model_copy(update={"retry_at": NOW + 9, "trouble": "no space left"})
    (retry,) = coordinator_waits(picture(failed))
    assert (retry.why, retry.until) == ("no space left", NOW + 9)
    broker = Wait("broker", "refused", NOW - 2, NOW + 1)
    assert coordinator_waits(picture(waiting, broker=broker))[0] is broker
    assert coordinator_waits(picture(RoundState(phase=RoundPhase.DONE, round=5))) == []


async def test_coordinator_status_reads_the_folder_of_a_running_and_of_a_dead_coordinator(
    tmp_path, monkeypatch
):
    settings = settings_for(tmp_path, 1)
    monkeypatch.setattr(status, "read_settings", lambda _file, _task: settings)
    task = tiny_task(min_devices=2, deadline_s=50.0)

    def told(*options):
        return CliRunner().invoke(coordinator_app, ["status", "-c", "x.toml", *options])

    assert told().exit_code == 69, "it never ran"
    async with bench(tmp_path, task) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        said = told("--why")
        assert said.exit_code == 0
        assert "coordinator: running" in said.stdout
        assert "update of a: it was offered the round" in said.stdout
        found = json.loads(told("--format", "json").stdout)
        assert found["phase"] == "collecting"
        assert found["devices_online"] == 2
        assert {wait["what"] for wait in found["waits"]} == {"updates", "update of a", "update of b"}
        assert all(0 < wait["left_s"] <= 50 for wait in found["waits"])
        made.link.connected, made.link.why, made.link.since = False, "connection refused", NOW
        await made.app.announcer.publish_round()
        assert json.loads(told("--format", "json").stdout)["waits"][0]["why"] == "connection refused"
        assert "phase: collecting" in told().stdout
    dead = told("--why")
    assert dead.exit_code == 69
    assert "coordinator: it does not run" in dead.stdout
    assert "update of a" not in dead.stdout


async def test_a_started_coordinator_asks_those_it_knows_and_has_not_heard(tmp_path, monkeypatch):
    monkeypatch.setattr("coordinator.messaging.state_requests._PAUSES_S", (0.05, 0.3))
    async with bench(tmp_path, tiny_task(min_devices=9)) as made:
        await made.online("a", "b", "c")
        made.app.storage.ledger.save()
        await made.until(lambda: True)
    link = FakeLink()
    async with bench(tmp_path, tiny_task(min_devices=9), link=link) as made:
        await made.online("a")
        asked = lambda device: [c.command for c in link.to(device, Kind.CMD)]  # noqa: E731 - short for three places
        await made.until(lambda: asked("b") and asked("c"))
        assert asked("a") == [], "it was heard"
        await made.online("b")
        await made.until(lambda: len(asked("c")) == 2)
        assert asked("b") == ["send_state"], "once heard, not asked again"


async def test_the_will_is_made_anew_at_each_connect(tmp_path):
    made = []
    link_of(settings_for(tmp_path, 1), lambda *_a, **options: made.append(options) or FakeLink())
    assert made[0]["ping_topic"] == "lichen/v1/test/b/ping"
    async with bench(tmp_path) as running:
        will = await running.until(lambda: running.link.will)
        assert b'"offline"' in will().payload
        assert will() is not will()
