"""The demo's last act, without a process: the bad model, what is heard, what is drawn, what must hold."""

import inspect
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coordinator.cli import rollout as command
from coordinator.cli.rollout_view import OpenedState, told
from coordinator.config.coordinator import load_settings
from coordinator.config.rollout import Plan
from coordinator.fleet.routes import ReleaseBundle
from coordinator.rollout.model import Abort, Create, RolloutState
from coordinator.rollout.model import Release as ReleaseOf
from coordinator.rollout.table import apply
from edge_agent.config import agent as agent_config
from export.cli import read_manifest, read_state
from lichen_lab.demo.core import prepare
from lichen_lab.demo.core.results import DeviceResults, RoundResult
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.core.side_jobs import lines
from lichen_lab.demo.plans.qqr.prepare import prepare as prepare_qqr
from lichen_lab.demo.plans.qqr.report import PAGE
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.rollout import devices, plots
from lichen_lab.demo.rollout.bad_model import shuffled, spoil
from lichen_lab.demo.rollout.checks import bad_model_contained, checks
from lichen_lab.demo.rollout.monitor import Recorder, last_turn, predictions_of
from lichen_lab.demo.rollout.results import Move, RolloutResults, WatchPrediction
from lichen_lab.demo.rollout.screen import board
from lichen_lab.demo.rollout.steps import DemoRolloutStatus, create_words, describe, status_of
from lichen_lab.simulation.data import spar_fleet as plan
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes.fleet_files import write_toml
from protocol import messages
from protocol.errors import Misconfigured
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef, State
from protocol.rollout import TrialReport
from protocol.topics import Kind, device_topic
from runtime.storage.blob_store import BlobStore
from tests.support.lab.rolled_out import BAD, FIRST, GOOD, rolled_out, rows


@pytest.fixture
def good() -> RolloutResults:
    return rolled_out()


def failed(results: RolloutResults | None) -> list[str]:
    return [check.what for check in checks(results) if not check.ok]


def test_all_well(good: RolloutResults) -> None:
    assert failed(good) == []
    assert all(check.must for check in checks(good))
    assert bad_model_contained(good)
    detail = checks(good)[0].detail
    assert "right in 10 % against 80 %" in detail
    assert "60 windows" in detail


def _kept(results: RolloutResults) -> None:
    results.moves[1].phase = "committed"


def _never_ran(results: RolloutResults) -> None:
    results.said["physcia"] = [one for one in results.said["physcia"] if one.version != BAD]


def _silent_since(results: RolloutResults) -> None:
    results.said["physcia"] = [one for one in results.said["physcia"] if one.at < 19]


def _no_model_since(results: RolloutResults) -> None:
    results.said["physcia"] = [one for one in results.said["physcia"] if not 19 <= one.at < 24]


def _went_on(results: RolloutResults) -> None:
    assert results.bad is not None
    results.bad.phase = "paused"


def _seen_by_another(results: RolloutResults) -> None:
    results.said["ramalina"] += rows((50, 51, BAD))


def _told_by_another(results: RolloutResults) -> None:
    results.moves.append(Move(50.0, "ramalina", "refused", BAD, "it does not fit"))


def _one_left_out(results: RolloutResults) -> None:
    results.said["ramalina"] = rows((10, 50, FIRST))


def _one_undecided(results: RolloutResults) -> None:
    results.moves.pop()


def _not_complete(results: RolloutResults) -> None:
    assert results.good is not None
    results.good.phase = "open"


def _too_early(results: RolloutResults) -> None:
    results.said["ramalina"] = rows((10, 29, FIRST), (29, 50, GOOD))


def _no_bad(results: RolloutResults) -> None:
    results.bad = None


def _no_good(results: RolloutResults) -> None:
    results.good = None


@pytest.mark.parametrize(
    "spoil_it",
    [
        _kept,
        _never_ran,
        _silent_since,
        _no_model_since,
        _went_on,
        _seen_by_another,
        _told_by_another,
        _one_left_out,
        _one_undecided,
        _not_complete,
        _too_early,
        _no_bad,
        _no_good,
    ],
)
def test_each_thing_that_fails_fails_the_act(good: RolloutResults, spoil_it) -> None:
    spoil_it(good)
    assert failed(good)


def test_without_the_act_every_check_fails() -> None:
    assert len(failed(None)) == len(failed(RolloutResults([], "physcia"))) == 5
    assert not bad_model_contained(None)


# ---- the bad model


def test_shuffled_weights_are_the_same_numbers_elsewhere() -> None:
    state = {"head": {"b": np.arange(60, dtype=np.float32).reshape(3, 20), "a": np.float32([7.0])}}
    found = shuffled(state, 3)["head"]
    assert found["b"].shape == (3, 20)
    assert found["b"].dtype == np.float32
    assert sorted(found["b"].flat) == list(range(60))
    assert not np.array_equal(found["b"], state["head"]["b"])
    assert np.array_equal(found["b"], shuffled(state, 3)["head"]["b"])
    assert state["head"]["b"][0, 1] == 1, "the version itself stays"


def test_the_bad_version_follows_the_newest_and_reads_as_any_other(tmp_path: Path) -> None:
    weights = np.arange(200, dtype=np.float32)
    store = BlobStore(tmp_path / "blobs")
    frame = encode_frame(BlobHeader(name="head"), {"w": encode(weights, Codec.FLOAT32)})
    newest = Manifest(task="t", method="qqr", version=4, blobs={"head": store.put(frame)})
    digest = store.put(messages.encode(newest)).digest
    manifest, blobs, version = spoil(tmp_path / "blobs", digest, tmp_path / "bad", seed=0)
    assert version == 5
    read, _ = read_manifest(manifest)
    assert (read.version, read.parent) == (5, digest)
    state = read_state(read, blobs)
    assert sorted(state["head"]["w"]) == list(weights)
    assert not np.array_equal(state["head"]["w"], weights)


# ---- what is heard


def state(device: str, phase: str, **more: object) -> tuple[str, bytes]:
    report = TrialReport.model_validate({"version": BAD, "bundle": "a" * 64, "phase": phase, **more})
    found = State(status="online", device=device, trial=report)
    return device_topic("demo", device, Kind.STATE), messages.encode(found)


def test_a_move_is_kept_once_with_its_last_figures() -> None:
    now, told_at_once = iter([1.0, 2.0, 3.0]), []
    heard = Recorder("demo", ["physcia"], lambda: next(now), told_at_once.append)
    heard.apply(*state("physcia", "trial", measures={"windows": 1}))
    heard.apply(*state("physcia", "trial", measures={"windows": 9}))
    heard.apply(*state("physcia", "rolled_back", why="worse", measures={"agreement": 0.123456}))
    heard.apply(*state("usnea", "trial"))
    heard.apply(device_topic("demo", "physcia", Kind.STATE), b"no json")
    heard.apply("somebody/else", b"")
    assert told_at_once == heard.moves
    assert heard.moves == [
        Move(1.0, "physcia", "trial", BAD, "", {"windows": 9.0}),
        Move(2.0, "physcia", "rolled_back", BAD, "worse", {"agreement": 0.1235}),
    ]


def test_a_model_that_is_tried_anew_moves_and_one_that_is_only_pointed_to_again_does_not() -> None:
    heard = Recorder("demo", ["physcia"], lambda: 0.0, lambda _: None)
    for serial, phase in enumerate(["trial", "rolled_back", "trial", "committed", "committed"]):
        heard.apply(*state("physcia", phase, serial=serial))
    assert [move.phase for move in heard.moves] == ["trial", "rolled_back", "trial", "committed"]
    assert describe(heard.moves[-1]) == f"physcia keeps version {BAD}"


def line(t: float, version: int, truth: str | None = "PEN") -> dict[str, object]:
    return {"t": t, "wall": 1000 + t, "version": version, "label": "PEN", "truth": truth}


def test_lines_are_read_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    (tmp_path / "p.jsonl.1").write_text(json.dumps(line(1.0, FIRST)) + "\n")
    file.write_text(json.dumps(line(2.0, GOOD, None)) + "\n" + json.dumps(line(3.0, GOOD, "ABD")) + '\n{"t":')
    found = predictions_of(lines(file), start_wall=990.0)
    assert found == [
        WatchPrediction(11.0, FIRST, True),
        WatchPrediction(12.0, GOOD, None),
        WatchPrediction(13.0, GOOD, False),
    ]


def test_a_turn_is_the_recording_once_in_its_order_by_one_version() -> None:
    played = [line(float(t), FIRST if t < 70 else GOOD) for t in range(160)]
    assert last_turn(played[:160], GOOD, 100.0) is None, "89 s of it were heard"
    played += [line(float(t), GOOD) for t in range(160, 185)]
    found = last_turn(played, GOOD, 100.0)
    assert found is not None
    assert [row["t"] for row in found] == list(range(100))
    assert last_turn([], GOOD, 100.0) is None


# ---- what is asked


def test_a_command_has_the_words_that_a_person_types(tmp_path: Path) -> None:
    words = create_words(tmp_path / "c.toml", devices.PLAN, ("--version", "4"))
    text = " ".join(words)
    assert text.startswith(f"rollout create --config {tmp_path / 'c.toml'} --version 4 ")
    assert "--canary label:site=lab --waves 0.3,1" in text
    assert "--min-agreement 0.45" in text
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(command.create).parameters}
    assert {word for word in words if word.startswith("--")} <= known


def test_how_a_rollout_stands_is_read_from_what_the_command_says() -> None:
    course = RolloutState(newest=None)

    def now() -> DemoRolloutStatus:
        return status_of(told(course, [], OpenedState(), mode="manual", running=True, now=100.0))

    assert not now().over
    ref = BlobRef(digest="a" * 64, size=1)
    release = ReleaseOf(version=5, pieces=(ReleaseBundle(version=5, bundle=ref),))
    course, _ = apply(course, Create(release=release, plan=Plan(canary="label:site=lab")), 100.0)
    assert (now().phase, now().over) == ("open", False)
    assert "version 5" in now().words
    course, _ = apply(course, Abort(), 101.0)
    assert (now().phase, now().why, now().over) == ("aborted", "by the operator", True)


# ---- what is drawn


def test_the_board_shows_the_last_of_each_watch(good: RolloutResults) -> None:
    sink = io.StringIO()
    console = Console(file=sink, width=200)
    console.print(board(good, [], ""))
    console.print(board(good, good.moves[:2], "rollout 2: canary"))
    text = sink.getvalue()
    assert "rollout 2: canary" in text
    assert re.search(r"physcia +7 +lab +5 +dropped it by itself +60 +says the same .* 5 %", text)
    assert re.search(r"ramalina +10 +clinic +- +starts", text)


def test_a_bar_ends_with_its_version_and_where_nothing_was_said(good: RolloutResults) -> None:
    found = list(plots.stretches(rows((0, 5, 1), (5, 8, 2), (20, 22, 2), (22, 23, 1))))
    assert found == [(1, 0.0, 4.9), (2, 5.0, 7.9), (2, 20.0, 21.9), (1, 22.0, 22.9)]
    assert plots.settled(good, "physcia", BAD, 13.0, 18.9) == 18.9, "all of it was a trial"
    assert plots.settled(good, "physcia", GOOD, 24.0, 49.9) == 30.0
    assert plots.settled(good, "ramalina", FIRST, 10.0, 34.9) == 10.0, "nothing was said of a trial"


def test_a_device_that_goes_back_has_decided_nothing_new(good: RolloutResults) -> None:
    back = [Move(11.0, "physcia", "committed", FIRST), Move(20.0, "physcia", "committed", FIRST)]
    good.moves = [*back, *good.moves]
    assert [(move.at, move.phase) for move in good.decisions() if move.device == "physcia"] == [
        (11.0, "committed"),
        (19.0, "rolled_back"),
        (30.0, "committed"),
    ]


def test_a_line_of_shares_breaks_between_versions() -> None:
    found = list(plots.shares([*rows((0, 10, 1)), *rows((10, 20, 2), right=False)]))
    assert {share for at, share in found if at < 9.5} == {100.0}
    assert {share for at, share in found if at > 10.5 and not np.isnan(share)} == {0.0}
    assert sum(np.isnan(share) for _, share in found) == 2
    assert list(plots.shares([WatchPrediction(0.0, 1, None)])) == []


def results(rollout: RolloutResults | None) -> QqrResults:
    sensors = ("accelerometer", "gyroscope")
    page = QqrResults(labels=spar.LABELS, modalities=sensors, unseen=(8, 9, 10), version="1", rollout=rollout)
    page.rounds = [RoundResult(1, 0.4, 10, 20, ("usnea",))]
    page.devices = [DeviceResults("usnea", (5,), "", alone=0.5)]
    return page


def test_the_page_has_the_section_and_escapes_what_devices_say(good: RolloutResults) -> None:
    page = PAGE.html(results(good))
    assert "A bad model, and a good one" in page
    assert "it &lt;says&gt; something else" in page
    assert "lichen rollout create --bundle b" in page
    assert "dropped it by itself" in page
    assert "reached only the first watch" in page
    assert '<b class="good">1 of 2</b>' in page
    assert "<b>6 s</b>" in page
    assert "<b>2 of 2</b>" in page
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', page)) <= set(re.findall(r'\bid="([^"]+)"', page))


@pytest.mark.long
def test_the_page_promises_nothing_that_did_not_happen(good: RolloutResults) -> None:
    _seen_by_another(good)
    assert "reached only the first watch" not in PAGE.html(results(good))
    assert "A bad model" not in PAGE.html(results(None))
    assert "A bad model" not in PAGE.html(results(RolloutResults([], "physcia")))


def test_results_with_rollouts_survive_their_file(good: RolloutResults, tmp_path: Path) -> None:
    whole = results(good)
    whole.save(tmp_path / "report.json")
    assert QqrResults.load(tmp_path / "report.json") == whole


# ---- the plan


def test_the_written_configurations_are_what_the_daemons_read(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 1884)
    for watch in devices.WATCHES:
        write_toml(layout.config(watch.name), devices.config(layout, watch))
    write_toml(layout.config("coordinator"), devices.coordinator(layout, 20))
    read = [agent_config.read(layout.config(watch.name)) for watch in devices.WATCHES]
    assert [one.labels["site"] for one in read].count(devices.LAB) == 1
    assert len({one.infer.output for one in read}) == len(devices.WATCHES)
    assert all(one.source[0]["loop"] for one in read)
    settings = load_settings(layout.config("coordinator"))
    assert settings.export.every_rounds == devices.first_version(20) == 10
    assert settings.keep_versions > 20
    assert settings.rollout.mode == "manual"


def test_no_watch_is_on_a_training_devices_person() -> None:
    trained = {person for device in plan.DEVICES for person in device.people}
    worn = [watch.person for watch in devices.WATCHES]
    assert len(set(worn)) == len(worn)
    assert not trained & set(worn)


def test_too_few_rounds_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    prepare.clear_folder(tmp_path)
    (tmp_path / "report.html").write_text("of yesterday")
    with pytest.raises(Misconfigured, match="--rounds 3"):
        prepare_qqr(Options(out=tmp_path, rounds=3))
    assert (tmp_path / "report.html").exists()
