"""What is said of a fleet: who is not there comes first, and what devices say is no markup."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lichen.commands.status import as_json, whereabouts
from lichen.commands.status_table import show
from protocol.errors import Misconfigured
from protocol.messages import ModalityState, RoundAnnouncement, State, encode
from protocol.rollout import Hindrance, TrialReport
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.fleet_view import FleetView
from tests.support.coordinator.fake import tiny_task
from tests.support.coordinator.graph import graph_task


def test_words_of_devices_are_not_obeyed_as_markup() -> None:
    view = FleetView("f")
    state = State(
        status="online", device="a", modalities={"acc": ModalityState(reasons=("stuck [/x]", "[bold]"))}
    )
    now = RoundAnnouncement(task="t", round=1, rounds=2, phase="collecting", waiting_for="trouble [/y]")
    assert view.apply(device_topic("f", "a", Kind.STATE), encode(state))
    assert view.apply(broadcast_topic("f", Kind.ROUND), encode(now))
    said = io.StringIO()
    show(view, Console(file=said, width=200), why=True)
    for words in ("stuck [/x]", "[bold]", "trouble [/y]"):
        assert words in said.getvalue()


def told(*announced: RoundAnnouncement, states: tuple[State, ...] = (), listened_s: float = 1.5) -> str:
    view = FleetView("f")
    for one in announced:
        assert view.apply(broadcast_topic("f", Kind.ROUND), encode(one))
    for state in states:
        assert view.apply(device_topic("f", state.device, Kind.STATE), encode(state))
    said = io.StringIO()
    show(view, Console(file=said, width=200), why=False, listened_s=listened_s)
    return said.getvalue()


def at(phase: str, **more: object) -> RoundAnnouncement:
    return RoundAnnouncement.model_validate({"task": "t", "round": 3, "rounds": 9, "phase": phase, **more})


def test_a_coordinator_that_is_not_there_comes_first() -> None:
    assert "no coordinator has been seen" in told().splitlines()[0]
    assert "THE COORDINATOR IS NOT CONNECTED" in told(at("offline")).splitlines()[0]
    assert "THE COORDINATOR WAS STOPPED" in told(at("stopped")).splitlines()[0]
    assert "COORDINATOR" not in told(at("collecting"))


def test_a_coordinator_that_broke_its_own_rhythm_is_named() -> None:
    words = "the coordinator sent nothing in 31 s, but should every 30 s"
    assert words in told(at("collecting", every_s=30.0), listened_s=31.0)
    assert words not in told(at("collecting", every_s=30.0), listened_s=29.0)


def test_what_is_not_known_of_a_device_is_a_dash() -> None:
    states = (
        State(status="offline", device="gone"),
        State(status="stopped", device="left", windows=7, modalities={"acc": ModalityState(missing=0.25)}),
    )
    gone, left = [
        [cell.strip() for cell in line.split("\N{BOX DRAWINGS LIGHT VERTICAL}")[1:-1]]
        for line in told(at("collecting", selected=("left",)), states=states).splitlines()
        if "gone" in line or "left" in line
    ]
    assert gone == ["gone", "offline", "-", "-", "-"]
    assert left == ["left", "stopped", "7", "acc 0.75, -", "asked"]


def test_the_table_counts_what_the_task_is_learned_from() -> None:
    for task, noun in ((None, "windows"), (tiny_task(), "windows"), (graph_task(), "triples")):
        view, said = FleetView("f"), io.StringIO()
        view.apply(device_topic("f", "a", Kind.STATE), encode(State(status="online", device="a", windows=7)))
        if task is not None:
            assert view.apply(broadcast_topic("f", Kind.TASK), encode(TaskAnnouncement.of(task)))
        show(view, Console(file=said, width=200), why=False)
        assert noun in said.getvalue()


@pytest.mark.parametrize("name", ["agent.toml", "coordinator.toml"])
def test_the_broker_is_taken_from_either_daemons_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).write_text(
        'fleet = "barn"\nstate_dir = "s"\n[mqtt]\nhost = "broker.example"\nport = 8883\nusername = "u"\n'
        'password_file = "pw"\n[mqtt.tls]\nca_file = "ca.pem"\n'
    )
    monkeypatch.setenv("LICHEN_STORE__BUDGET_BYTES", "1000000")
    found = whereabouts(tmp_path / name, None, {"host": None, "port": 1})
    assert (found.fleet, found.mqtt.where) == ("barn", "broker.example:1")
    assert found.mqtt.password_file == tmp_path / "pw"
    assert found.mqtt.tls is not None
    assert found.mqtt.tls.ca_file == tmp_path / "ca.pem"
    assert whereabouts(tmp_path / name, "field", {}).fleet == "field"


def test_a_fleet_without_a_name_or_with_a_wrong_one_is_said() -> None:
    with pytest.raises(Misconfigured, match="--config FILE"):
        whereabouts(None, None, {})
    with pytest.raises(Misconfigured, match="a/b"):
        whereabouts(None, "a/b", {})


@pytest.mark.parametrize(
    ("until_s", "words"), [(None, "with no time limit"), (75.0, "for 1 min 15 s more at most")]
)
def test_why_says_how_old_the_words_are_and_for_how_long_at_most(
    until_s: float | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1030.0)
    view = FleetView("f")
    one = at("collecting", waiting_for="a, b (for 200 s)", waited_s=200.0, until_s=until_s, said_wall=1000.0)
    assert view.apply(broadcast_topic("f", Kind.ROUND), encode(one))
    said = io.StringIO()
    show(view, Console(file=said, width=200), why=True)
    assert "waits for: a, b (for 200 s)" in said.getvalue()
    assert f"reported 30 s ago, {words}" in said.getvalue()
    assert "3 min 20 s" not in said.getvalue(), "the words hold it already"


def test_words_of_a_coordinator_that_does_not_date_them_are_of_an_unknown_age() -> None:
    view, said = FleetView("f"), io.StringIO()
    assert view.apply(broadcast_topic("f", Kind.ROUND), encode(at("collecting", waiting_for="a")))
    show(view, Console(file=said, width=200), why=True)
    assert "reported at an unknown time" in said.getvalue()


TRIED = {"version": 3, "bundle": "a" * 64}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "d runs no model: no model is announced to the whole fleet yet"),
        (
            {"trial": TrialReport(**TRIED, phase="refused", why="it wants \x1b[31meeg")},
            "d runs no model: version 3 was refused: it wants [31meeg",
        ),
        (
            {"hindered": Hindrance(why="no space left", version=3, bundle="a" * 64)},
            "d runs no model: version 3 is not here yet: no space left",
        ),
        (
            {"roles": (), "hindered": Hindrance(why="infer.enabled is false")},
            "d runs no model: infer.enabled is false",
        ),
        ({"model": "a" * 64}, None),
        ({"roles": ("train",)}, None),
        ({"status": "stopped"}, None),
    ],
)
def test_why_says_of_each_device_that_infers_why_it_runs_no_model(said, words: str | None) -> None:
    state = State(**{"status": "online", "device": "d", "roles": ("observe",), **said})
    view = FleetView("f")
    assert view.apply(device_topic("f", "d", Kind.STATE), encode(state))
    for why in (True, False):
        shown = io.StringIO()
        show(view, Console(file=shown, width=200), why=why)
        lines = [line for line in shown.getvalue().splitlines() if "no model" in line]
        assert lines == ([words] if words and why else [])
    json.dumps(as_json(view))
