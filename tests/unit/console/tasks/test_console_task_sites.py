"""Tasks are read where somebody looks, and appear and go as ``coordinator.toml`` says."""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from console.tasks import open_sites, task_list
from console.tasks.task_list import TaskList
from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.identity.store import IdentityStore
from coordinator.round_machine.events import RoundPhase
from tests.support.console.consoles import Client, running
from tests.support.console.history import History, settings_in
from tests.support.console.several_tasks import SOUND, learns, several_tasks, tasks_of


def until(look: Callable[[], Any], words: str) -> Any:
    end = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < end, words
        time.sleep(0.02)
    return found


@contextmanager
def databases_asked() -> Iterator[set[str]]:
    """The databases that any statement goes to."""
    found: set[str] = set()

    def note(connection: sa.Connection, *_: object) -> None:
        file = connection.connection.dbapi_connection
        assert file is not None
        found.add(str(file.cursor().execute("PRAGMA database_list").fetchone()[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorSettings:
    """A main task and seven further ones."""
    folder = tmp_path_factory.mktemp("eight")
    names = [f"t{number}" for number in range(7)]
    settings = settings_in(folder, tasks=tasks_of(folder, *names))
    learns(settings, 1, ["a"])
    for name in names:
        learns(settings.for_task(name), 1, ["a"])
    return settings


def test_a_task_costs_nothing_until_somebody_looks_and_after_nobody_does(
    eight: CoordinatorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_sites, "_TURN_S", 0.05)
    with databases_asked() as asked, running(eight) as console:
        client = Client(console.url)
        assert client.get("/rounds").status == 200
        assert dict(console.sites.sites) == {}
        assert not [one for one in asked if "/tasks/" in one]
        client.get("/tasks/t3/rounds")
        client.get("/api/v1/tasks/t3/devices")
        assert list(console.sites.sites) == ["t3"]
        assert {one.split("/tasks/")[1].partition("/")[0] for one in asked if "/tasks/" in one} == {"t3"}
        assert console.summaries.open == 0
        site = console.sites.sites["t3"]
        monkeypatch.setattr(open_sites, "IDLE_S", 0.1)
        until(lambda: not console.sites.sites, "it is closed when nobody looks")
        until(lambda: site._tables._is_closed, "with its connections")
        assert site.devices.whole._store is None
        asked.clear()
        until(lambda: asked, "the main task is read further")
        assert not [one for one in asked if "/tasks/" in one]
        monkeypatch.setattr(open_sites, "IDLE_S", 60.0)  # not within the request, on a busy machine
        assert client.get("/tasks/t3/rounds").status == 200, "and opened again"


def test_the_page_of_all_tasks_reads_each_while_somebody_looks(
    eight: CoordinatorSettings,
) -> None:
    with running(eight) as console:
        client = Client(console.url)
        assert len(client.get("/api/v1/tasks").json["tasks"]) == 8
        assert console.summaries.open == 8
        console.summaries.close_idle()
        assert console.summaries.open == 8, "somebody has just looked"

        def closed() -> bool:  # a reading that had begun may open them once more
            console.summaries.close_idle(0.0)
            return not console.summaries.open

        until(closed, "nobody looks")
        assert dict(console.sites.sites) == {}
        assert {one["version"] for one in client.get("/api/v1/tasks").json["tasks"]} == {1}


def test_a_viewer_of_events_has_the_news_of_one_task_and_keeps_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_sites, "_TURN_S", 0.05)
    settings = several_tasks(tmp_path)
    with running(settings) as console:
        at = urlsplit(console.url)
        line = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
        line.request("GET", "/tasks/sound/events", headers={"accept": "text/event-stream"})
        stream = line.getresponse()

        def rounds() -> str:
            """The next revision of the rounds."""
            while stream.readline().strip() != b"event: rounds":
                pass
            return stream.readline().decode()

        first, main = rounds(), console.watch.picture.revisions["rounds"]
        monkeypatch.setattr(open_sites, "IDLE_S", 0.1)
        time.sleep(0.3)
        assert list(console.sites.sites) == [SOUND], "as long as it is heard"
        with History(settings.for_task(SOUND)) as history:
            history.clock.set_wall(time.time())
            history.opens(3, ["both"])
            history.stands(RoundPhase.COLLECTING, 3, 2, selected=("both",), until=time.time() + 600)
        assert rounds() != first
        assert console.watch.picture.revisions["rounds"] == main, "the main task has no news"
        stream.close()
        line.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a main task and ``sound``."""
    settings = several_tasks(tmp_path)
    file = tmp_path / "coordinator.toml"
    file.write_text(
        f'fleet = "test"\nstate_dir = "{settings.state_dir}"\ntask = "task.toml"\n'
        '[[tasks]]\nname = "sound"\ntask = "sound.toml"\n'
    )
    return file


def test_a_task_appears_and_goes_as_the_file_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_list, "_LOOK_S", 0.05)
    monkeypatch.setattr(open_sites, "_TURN_S", 0.05)
    text = file.read_text()
    with running(load_settings(file), config=file) as console:
        client = Client(console.url)
        assert client.get("/tasks/door").status == 404
        assert client.get("/tasks/sound/rounds").status == 200
        file.write_text(text + '[[tasks]]\nname = "door"\ntask = "door.toml"\n')
        until(lambda: client.get("/tasks/door").status == 200, "the new task has its pages")
        assert 'href="/tasks/door"' in client.get("/").body
        file.write_text(f"{text}nonsense")
        until(lambda: console.tasks.trouble, "the file is read again")
        assert client.get("/tasks/sound/rounds").status == 200, "the tasks are those of before"
        shown = until(lambda: client.get("/api/v1/tasks").json["trouble_of_file"], "it is said")
        assert "coordinator.toml" in shown
        assert "coordinator.toml cannot be read again" in client.get("/tasks").body
        file.write_text(text[: text.index("[[tasks]]")])
        until(lambda: client.get("/tasks/sound/rounds").status == 404, "it is gone")
        until(lambda: not console.sites.sites, "and read no more")
        assert 'href="/tasks' not in client.get("/").body.replace('href="/tasks"', "")
        assert console.tasks.trouble == ""


def test_a_task_whose_settings_change_is_opened_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_list, "_LOOK_S", 0.05)
    with running(load_settings(file), config=file) as console:
        client = Client(console.url)
        assert client.get("/tasks/sound/rollouts").body.count("each export goes to all at once") == 1
        before = console.sites.sites[SOUND]
        file.write_text(f'{file.read_text()}[tasks.rollout]\nmode = "manual"\n')
        until(lambda: "manual" in client.get("/tasks/sound/rollouts").body, "it counts without a restart")
        assert console.sites.sites[SOUND] is not before


def test_the_file_is_read_again_only_if_it_or_a_drop_in_has_changed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def counted(path: Path) -> CoordinatorSettings:
        read.append(path)
        return load_settings(path)

    monkeypatch.setattr(task_list, "load_settings", counted)
    tasks = TaskList(load_settings(file), file)
    for _ in range(3):
        tasks.refresh(file)
    assert len(read) == 1
    folder = file.with_name("coordinator.d")
    folder.mkdir()
    (folder / "10-tasks.toml").write_text('[[tasks]]\nname = "other"\ntask = "o.toml"\n')
    tasks.refresh(file)
    assert (len(read), tasks.names) == (2, ("other",))
    file.unlink()
    tasks.refresh(file)
    assert tasks.names == ("other",), "what there was stays"
    assert str(file) in tasks.trouble


def test_a_task_that_cannot_be_read_does_not_end_the_console(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path)
    with settings.for_task(SOUND).location.database() as store:
        store.put_meta({"task": "{"})
    with running(settings) as console:
        client = Client(console.url)
        answer = client.get("/api/v1/tasks/sound/status")
        assert (answer.status, "task sound cannot be read" in answer.json["error"]) == (503, True)
        assert client.get("/rounds").status == 200
        _, sound, _ = client.get("/api/v1/tasks").json["tasks"]
        assert "rows of the tables are not as expected" in sound["trouble_of_tables"]
        assert "cannot be read" in client.get("/tasks").body


@pytest.mark.both_engines
def test_a_task_is_read_and_its_devices_are_admitted_by_the_fleet_on_both_engines(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path)
    with running(settings) as console:
        client = Client(console.url)

        def ear() -> dict[str, Any]:
            [found] = client.get("/api/v1/tasks/sound/devices?q=ear").json["devices"]
            return dict(found)

        assert (ear()["standing"], client.get("/api/v1/devices/both").json["tasks"]) == ("", [None, SOUND])
        _, sound, door = client.get("/api/v1/tasks").json["tasks"]
        assert (sound["version"], sound["has_begun"], door["has_begun"]) == (2, True, False)
        with IdentityStore(settings.location) as identities:  # the fleet's, and not the task's
            identities.revoke("ear", unknown=True)
        until(lambda: ear()["standing"] == "revoked", "the task's list follows the fleet's decision")
        assert client.get("/api/v1/tasks/door/devices").json["trouble_of_tables"]
