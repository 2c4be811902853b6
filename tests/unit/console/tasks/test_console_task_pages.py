"""The pages and operations of each task of a fleet, at its own address."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lichen
from console.serve import RunningConsole
from coordinator.actions import people
from coordinator.admission.operator_orders import SEND_STATE, read_order
from coordinator.audit.log import AuditLog, read_log, verify_log
from coordinator.audit.tables import OPERATORS
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.task_reports import META, TaskReport, encode_reports
from tests.support.console.consoles import ADMIN, Client, running, signed_in
from tests.support.console.history import History
from tests.support.console.several_tasks import DOOR, SOUND, several_tasks


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorSettings:
    made = several_tasks(tmp_path_factory.mktemp("tasks"))
    with AuditLog(made.location) as log:  # a row of before there were further tasks
        log.append(ADMIN, "rounds.hold", "", "done")
    return made


@pytest.fixture(scope="module")
def console(settings: CoordinatorSettings) -> Iterator[RunningConsole]:
    sound = settings.for_task(SOUND)
    with settings.location.database(), sound.location.database(), running(settings) as made:
        yield made


@pytest.fixture
def client(console: RunningConsole) -> Client:
    return Client(console.url)


def until(look: Callable[[], Any], words: str) -> Any:
    """What is found, as soon as it is something."""
    end = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < end, words
        time.sleep(0.05)
    return found


def test_each_task_has_its_pages_and_all_links_stay_in_it(client: Client) -> None:
    assert "Round 3" in client.get("/rounds").body
    found = client.get("/tasks/sound/rounds").body
    assert "Round 2" in found
    assert "/rounds/4" not in found
    assert 'sse-connect="/tasks/sound/events"' in found
    paths = ("", "/rounds", "/rounds/2", "/versions", "/versions/1", "/versions/1/evaluation", "/rollouts")
    for path in (*paths, "/devices", "/devices/both", "/devices?sort=heard", "/refusals"):
        page = client.get(f"/tasks/sound{path}")
        assert page.status == 200, path
        links = set(re.findall(r'(?:href|hx-get|action)="(/[^"]*)"', page.body.partition("<main")[2]))
        strange = {one for one in links if not one.startswith("/tasks/sound/") and one != "/tasks/sound"}
        assert strange <= {"/devices/both"}, (path, "the other task of a device alone leads out")


def test_operations_of_a_task_are_below_its_name(client: Client) -> None:
    rounds = client.get("/api/v1/tasks/sound/rounds").json
    assert [one["round"] for one in rounds["rounds"]] == [2, 1]
    assert client.get("/api/v1/rounds").json["total"] == 3
    assert client.get("/api/v1/tasks/sound/status").json["status"]["task"] == "barn-sounds"
    devices = client.get("/api/v1/tasks/sound/devices").json["devices"]
    assert [one["device"] for one in devices] == ["both", "ear"]
    document = client.get("/api/v1/openapi.json").json
    named = document["paths"]["/api/v1/tasks/{task}/rounds/{round}"]["get"]
    assert [one["name"] for one in named["parameters"]] == ["task", "round"]
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)), "each operation has a name of its own"


def test_all_tasks_are_on_one_page_with_what_each_waits_for(client: Client) -> None:
    main, sound, door = client.get("/api/v1/tasks").json["tasks"]
    assert (main["name"], main["path"], main["task"], main["version"]) == (None, "/", "gait", 3)
    assert (sound["name"], sound["path"], sound["round"], sound["phase"]) == (
        SOUND,
        "/tasks/sound",
        3,
        "waiting_for_devices",
    )
    assert sound["learns"] == "bark, moo; from mic"
    assert (sound["running"], sound["devices_known"]) == (True, 2)
    assert "round 3 attempt 1" in sound["waits"][0]["why"]
    assert (door["name"], door["has_begun"], door["task"], door["running"]) == (DOOR, False, None, None)
    page = client.get("/tasks").body
    assert 'sse-connect="/events/tasks"' in page
    assert "The coordinator that runs does not know it yet: <code>systemctl reload" in page
    assert 'href="/tasks/sound/versions/2"' in page


def test_a_task_that_has_not_begun_is_shown_as_such(client: Client) -> None:
    page = client.get("/tasks/door/rounds")
    assert page.status == 200
    assert "the coordinator makes its tables when it begins this task" in page.body
    answer = client.get("/api/v1/tasks/door/rounds")
    assert (answer.status, "when it begins this task" in answer.json["error"]) == (503, True)


def test_a_task_that_there_is_not_is_said_in_words(client: Client) -> None:
    words = "this fleet has no task 'sounds' (any more); its further tasks: sound, door"
    for path in ("", "/rounds", "/devices/both", "/events"):
        found = client.get(f"/tasks/sounds{path}")
        assert found.status == 404
        assert words in found.body.replace("&#39;", "'")
    assert client.get("/api/v1/tasks/sounds/rounds").json == {"error": words}
    shown = client.get("/tasks/sounds/rounds", hx_request="true", hx_target="live")
    assert (shown.status, words in shown.body.replace("&#39;", "'")) == (200, True), "an open page says so"
    acted = client.get("/api/v1/tasks/%2e%2e/rounds")
    assert acted.status == 404


def test_a_device_names_its_tasks(client: Client) -> None:
    assert client.get("/api/v1/devices/both").json["tasks"] == [None, SOUND]
    assert client.get("/api/v1/tasks/sound/devices/ear").json["tasks"] == [SOUND]
    page = client.get("/tasks/sound/devices/both").body
    assert '<a href="/devices/both">main task</a>' in page
    assert '<a href="/tasks/sound/devices/both" aria-current="true">sound</a>' in page


def test_an_action_is_about_the_task_of_its_page_and_the_log_of_the_fleet_says_so(
    console: RunningConsole, settings: CoordinatorSettings
) -> None:
    sound, ann = settings.for_task(SOUND), signed_in(console, settings, "operator", "ann")
    before = len(read_log(settings.location))
    page = ann.get("/tasks/sound/rounds")
    hold = {"csrf": page.field("csrf"), "seen": "open", "back": "/tasks/sound/rounds", "why": "noise"}
    done = ann.form("/tasks/sound/act/rounds/hold", hold)
    assert (done.status, 'href="/tasks/sound/rounds">Back' in done.body) == (200, True)
    assert (read_order(sound.location).state, read_order(settings.location).state) == ("held", "")
    assert ann.post("/api/v1/tasks/sound/devices/both/ask-state", {}).status == 200
    with sound.location.reader(OPERATORS) as tables:
        assert tables is not None
        assert [tuple(row)[:2] for row in tables.execute("SELECT * FROM requests")] == [("both", SEND_STATE)]
    rows = read_log(settings.location)[before:]
    assert [(one.who, one.action, one.target, one.task) for one in rows if one.of is None] == [
        ("ann", "rounds.hold", "noise", SOUND),
        ("ann", "device.ask_state", "both", SOUND),
    ]
    assert verify_log(settings.location).row is None, "with the rows that name no task"
    assert read_log(sound.location) == [], "the fleet has one log"
    shown = until(lambda: ann.get("/api/v1/audit?task=sound").json["rows"], "the rows are read")
    assert {one["task"] for one in shown} == {SOUND}
    assert 'task <a href="/tasks/sound">sound</a>' in ann.get("/audit").body
    assert ann.post("/api/v1/rounds/hold", {}).status == 200
    assert read_log(settings.location)[-1].task is None


def test_the_head_leads_to_the_same_page_of_each_task(client: Client) -> None:
    head = client.get("/tasks/sound/rounds/2").body.partition("<main")[0]
    menu = re.findall(r'<li><a href="([^"]*)"( aria-current="true")?>([^<]*)</a>', head)
    assert menu == [
        ("/rounds", "", "main task"),
        ("/tasks/sound/rounds", ' aria-current="true"', "sound"),
        ("/tasks/door/rounds", "", "door"),
        ("/tasks", "", "All tasks"),
    ]
    pages = re.findall(r'<a href="([^"]*)"[^>]*>', head.partition('aria-label="Pages"')[2])
    assert pages[:2] == ["/tasks/sound", "/tasks/sound/rounds"]
    assert pages[-3:] == ["/tasks", "/enrolment", "/audit"]
    of_fleet = client.get("/audit").body.partition("<main")[0]
    assert "Choose a task" in of_fleet
    assert 'href="/rounds"' not in of_fleet, "nobody acts on the main task because they forgot the other"


def test_a_task_that_failed_says_why_and_when_it_is_tried_again(tmp_path: Path) -> None:
    settings, again = several_tasks(tmp_path), time.time() + 100
    with settings.location.database() as store, running(settings) as made:
        reports = {DOOR: TaskReport(state="failed", why="door.toml: <no> name", again=again)}
        store.put_meta({META: encode_reports(reports | {SOUND: TaskReport(state="running")})})
        client = Client(made.url)
        _, sound, door = client.get("/api/v1/tasks").json["tasks"]
        assert (sound["state"], door["state"], door["again"]) == ("running", "failed", again)
        assert door["why"] == "door.toml: <no> name"
        page = client.get("/tasks").body
        assert "door.toml: &lt;no&gt; name" in page
        assert "tried again <time" in page
    with running(settings) as made:
        page = Client(made.url).get("/tasks").body
        assert "door.toml" not in page, "nothing runs that would try again"
        assert "It has no tables yet: the coordinator makes them when it begins this task" in page


def test_a_fleet_with_one_task_shows_no_tasks(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path).model_copy(update={"tasks": ()})
    with running(settings) as made:
        client = Client(made.url)
        page = client.get("/devices/both").body
        assert 'href="/tasks' not in page
        assert "switch" not in page
        assert client.get("/api/v1/devices/both").json["tasks"] == []
        assert [one["name"] for one in client.get("/api/v1/tasks").json["tasks"]] == [None]
        assert client.get("/tasks/sound").status == 404
        assert "it has one task" in client.get("/api/v1/tasks/sound/status").json["error"]


def test_the_python_client_is_of_one_task(console: RunningConsole, settings: CoordinatorSettings) -> None:
    token, _ = people.link(settings, ADMIN, "bea", "admin")
    sound = lichen.Fleet(console.url, link=token, task=SOUND)
    assert repr(sound).endswith(", task sound>")
    assert sound.rounds().column("round") == [2, 1]
    assert sound.devices().column("device") == ["both", "ear"]
    assert sound.tasks().column("name") == [None, SOUND, DOOR]
    assert sound.version(1)["version"]["row"]["version"] == 1
    assert sound.who()["name"] == "bea"
    assert sound.ask_state("ear")["device"] == "ear"
    with pytest.raises(lichen.Refused, match="no device leg"):
        sound.ask_state("leg")
    with pytest.raises(lichen.Refused, match="no device ghost"):
        sound.approve("ghost")
    with pytest.raises(lichen.Refused, match="this fleet has no task 'ear'"):
        lichen.Fleet(console.url, session=sound.session, task="ear").rounds()


async def test_a_bundle_of_a_task_is_downloaded_at_its_address(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path)
    with History(settings.for_task(SOUND)) as history:
        await history.exports(2, b"bytes of the task")
    with running(settings) as made:
        file = lichen.Fleet(made.url, task=SOUND).download(2, tmp_path / "bundle")
        assert file.read_bytes() == b"bytes of the task"
        path = Client(made.url).get("/api/v1/tasks/sound/versions/2").json["bundles"][0]["path"]
        assert path.startswith("/tasks/sound/versions/2/bundles/")
        sent = Client(made.url).get(path)
        assert "test-sound-version-2-" in sent.headers["content-disposition"]
        assert Client(made.url).get(path.removeprefix("/tasks/sound")).status == 404
