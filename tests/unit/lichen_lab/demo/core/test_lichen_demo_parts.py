"""The demo's pieces that need no process: its plan, its study's table, its observer's reading, its screen."""

import io
import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from coordinator.config.coordinator import load_settings
from edge_agent.config import agent as agent_config
from lichen_lab.demo.core import chaos, prepare, scenario
from lichen_lab.demo.core import observer as observing
from lichen_lab.demo.core.results import ObservedPrediction, ObserverResults
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.core.screen import Screen, headline, round_line
from lichen_lab.demo.core.side_jobs import lines
from lichen_lab.demo.plans.qqr import simulated_seeds
from lichen_lab.demo.plans.qqr.prepare import prepare as prepare_qqr
from lichen_lab.demo.plans.qqr.simulated_seeds import ALONE, FEDERATED, SeedLine, summarise
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes import environment
from lichen_lab.simulation.processes.fleet_files import toml, write_toml
from lichen_lab.simulation.processes.process import Child
from protocol.errors import Misconfigured
from protocol.messages import Receipt, RoundAnnouncement, encode
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.fleet_view import FleetView
from runtime.settings.load import load_toml


def test_no_person_is_on_both_sides() -> None:
    training = [person for device in spar_fleet.DEVICES for person in device.people]
    everybody = [*training, *spar_fleet.UNSEEN, spar_fleet.OBSERVED]
    assert len(everybody) == len(set(everybody))
    assert set(everybody) <= set(spar.PEOPLE)
    assert len(spar_fleet.DEVICES) >= 5


def test_the_written_configurations_are_what_the_daemons_read(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 1884, start_s={"usnea": 12.5})
    write_toml(layout.config("usnea"), scenario.agent_config(layout, "usnea", 20.0))
    write_toml(layout.config("physcia"), scenario.observer_config(layout, "physcia", 9.0))
    write_toml(layout.config("coordinator"), scenario.coordinator_config(layout))
    layout.write_task(spar_fleet.task(7))
    agent = agent_config.read(layout.config("usnea"))
    assert agent.source[0]["start_s"] == 12.5
    assert agent.mqtt.port == 1884
    assert agent_config.read(layout.config("physcia")).roles == ("observe",)
    assert load_settings(layout.config("coordinator")).mqtt.port == 1884
    assert load_toml(Task, layout.config("task")) == spar_fleet.task(7)


def test_toml_survives_quotes_and_nesting() -> None:
    table = {"a": 'say "hi" \\ é', "b": {"c": [1, 2.5], "d": {"e": True}}, "f": [{"g": 1}, {"g": 2}]}
    assert tomllib.loads(toml(table)) == table


def test_somebody_elses_folder_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(Misconfigured, match="not from an earlier demo"):
        prepare.clear_folder(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_an_earlier_demos_folder_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare.clear_folder(out)
    files = [
        "predictions.jsonl",
        "predictions.jsonl.1",
        "report.html",
        "report.json",
        "faults.json",
        "unseen.npz",
    ]
    for name in files:
        (out / name).write_text("{}")
    (out / "state").mkdir()
    prepare.clear_folder(out)
    assert [path.name for path in out.iterdir()] == [".lichen-demo"]


@pytest.mark.parametrize("lacking", ["spar", "matplotlib"])
def test_an_earlier_demo_is_only_cleared_by_one_that_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    prepare.clear_folder(tmp_path)
    (tmp_path / "report.html").write_text("of yesterday")
    if lacking == "spar":
        monkeypatch.setenv(spar.FILE_VARIABLE, str(tmp_path / "none.npy"))
    else:
        monkeypatch.setattr(prepare, "find_spec", lambda name: None if name == lacking else name)
    with pytest.raises((Misconfigured, ModuleNotFoundError)):
        prepare_qqr(Options(out=tmp_path))
    assert (tmp_path / "report.html").exists()


def test_the_coordinator_of_a_demo_runs_all_rounds(tmp_path: Path) -> None:
    """The demo waits for the version of the last one."""
    task = spar_fleet.task(40)
    assert task.rounds.patience < 40, "else this shows nothing"
    stage = scenario.PreparedDemo(Layout(tmp_path, 1884), task, None, {}, lambda _: {}, {})
    prepare.write_configurations(stage, {})
    written = load_toml(Task, stage.layout.config("task"))
    assert (written.rounds.patience, written.rounds.count) == (0, 40)


def test_margins_are_paired_by_seed() -> None:
    lines = [
        SeedLine(1, FEDERATED, 0.80, 1.0),
        SeedLine(2, FEDERATED, 0.60, 1.0),
        SeedLine(1, ALONE, 0.50, 1.0),
        SeedLine(2, ALONE, 0.30, 1.0),
        SeedLine(3, ALONE, 0.99, 1.0),
    ]
    rows = {row.variant: row for row in summarise(lines)}
    assert rows[ALONE].margin == pytest.approx(0.30)
    assert rows[ALONE].margin_sd == pytest.approx(0.0)
    assert rows[ALONE].seeds == 3
    assert rows[FEDERATED].sd == pytest.approx(0.1414, abs=1e-4)


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    whole = json.dumps(vars(SeedLine(1, FEDERATED, 0.5, 1.0)))
    file.write_text(f"{whole}\n{whole[:20]}")
    assert simulated_seeds.read(file) == [SeedLine(1, FEDERATED, 0.5, 1.0)]
    assert simulated_seeds.read(tmp_path / "none.jsonl") == []


def _row(t: float, label: str, truth: str | None) -> str:
    told = {"t": t, "label": label, "probabilities": [0.25, 0.75], "present": {"gyroscope": False}}
    return json.dumps({**told, "truth": truth, "latency_ms": 2.0}) + "\n"


def test_predictions_are_read_and_judged_inside_and_outside_the_fault(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    (tmp_path / "p.jsonl.1").write_text(_row(1.0, "PEN", "PEN"))
    file.write_text(_row(11.0, "PEN", "ABD") + _row(12.0, "PEN", None) + _row(21.0, "ABD", "ABD") + '{"t":')
    told = ObserverResults("o", 7, "python", torch_free=True, how="", fault=(10.0, 20.0))
    told.predictions = observing.parse(lines(file))
    assert [p.right for p in told.predictions] == [True, False, None, True]
    assert told.accuracy() == pytest.approx(2 / 3)
    assert told.accuracy(failing=True) == 0.0
    assert told.accuracy(failing=False) == 1.0
    assert told.latency_ms() == 2.0


def test_nothing_known_is_no_accuracy() -> None:
    told = ObserverResults("o", 7, "python", torch_free=True, how="")
    told.predictions = [ObservedPrediction(1.0, "PEN", None, 0.5, {})]
    assert told.accuracy() is None


def test_a_missing_observer_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no-such-python"):
        environment.environment(tmp_path / "no-such-python")


def test_without_an_environment_torch_is_blocked_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = environment.environment(None)
    assert place.python == Path(sys.executable)
    assert "unimportable" in place.how
    assert place.torch_free()


def _view(*announced: RoundAnnouncement) -> FleetView:
    view = FleetView("f")
    for one in announced:
        view.apply(broadcast_topic("f", Kind.ROUND), encode(one))
    return view


def _announced(**more: object) -> RoundAnnouncement:
    base = {"task": "t", "round": 4, "rounds": 9, "phase": "collecting", "selected": ("a", "b")}
    return RoundAnnouncement.model_validate({**base, **more})


def test_chaos_strikes_only_in_mid_round() -> None:
    assert chaos.moment(_view(), 9) is None
    assert chaos.moment(_view(_announced()), 9) is None, "nothing is accepted yet"
    assert chaos.moment(_view(_announced(accepted=("a", "b"))), 9) is None, "nobody is left to kill"
    assert chaos.moment(_view(_announced(accepted=("a",), round=1)), 9) is None, "everybody still starts"
    assert chaos.moment(_view(_announced(accepted=("a",))), 9) == "b"


def test_the_screen_tells_rounds_without_a_terminal() -> None:
    sink = io.StringIO()
    stale = _announced(phase="evaluating", version=4, metrics={"accuracy": 0.25})
    view = _view(stale, _announced(round=5, version=4, metrics={"accuracy": 0.5}))
    receipt = Receipt(task="t", round=4, digest="0" * 64, status="accepted")
    view.apply(device_topic("f", "b", Kind.RECEIPT), encode(receipt))
    with Screen(Console(file=sink, width=200)) as screen:
        screen.say("started")
        screen.show(view, {"a": "1", "b": "2"})
        screen.show(view, {"a": "1", "b": "2"})
    lines = sink.getvalue().splitlines()
    assert len(lines) == 2, "the same state is told once"
    assert "round 4/9 · from b" in lines[1]
    assert "50.0 %" in lines[1]
    assert "0/2 delivered" in headline(view)
    assert round_line(FleetView("f")) == ""


def test_all_of_a_round_is_said_although_the_next_one_asks_others() -> None:
    view = _view(_announced(), _announced(round=5, selected=(), version=4, metrics={"accuracy": 0.5}))
    for name in ("a", "b"):
        receipt = Receipt(task="t", round=4, digest="0" * 64, status="accepted")
        view.apply(device_topic("f", name, Kind.RECEIPT), encode(receipt))
    assert "from all 2" in round_line(view)


def test_only_a_new_process_counts_as_come_back(tmp_path: Path) -> None:
    struck = chaos.Strike("a", 3, {"a": 11, "coordinator": 12})
    children = [Child(name, [], tmp_path / name) for name in ("a", "coordinator", "b")]
    assert struck.returned(children) == ()
    for child, pid in zip(children, (11, 99, 98), strict=True):
        child.process = SimpleNamespace(pid=pid, returncode=None)  # type: ignore[assignment]
    assert struck.returned(children) == ("coordinator",)


def test_the_screen_draws_a_table_on_a_terminal() -> None:
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=True, width=160)
    with Screen(console) as screen:
        screen.show(_view(_announced(accepted=("a",))), {"a": "1", "b": "2"})
    assert "delivered" in sink.getvalue()
    assert "learning" in sink.getvalue()
