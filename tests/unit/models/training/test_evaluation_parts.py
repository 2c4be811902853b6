"""Scores of parts of the windows: by person, with fewer modalities, and of what a device had labels for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app as coordinator
from lichen_lab.simulation.cli import app as simulate
from lichen_lab.simulation.data_cli import app as data
from lichen_lab.simulation.training.runner import alone
from models.contract import WindowSet
from models.data import window_set as windowset
from models.registry import method
from models.training.evaluation import in_parts, judge, of_classes
from models.worker import __main__, job_folder
from protocol.errors import Misconfigured
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task
from tests.support.methods.disentafl_cases import task_of, windows_of
from tests.unit.coordinator.cli.test_coordinator_cli import write
from tests.unit.lichen_lab.simulation.test_simulate_cli import TASK, recording, window_set
from tests.unit.lichen_lab.simulation.training.test_simulate_routed import FLEET, SMALL, held
from tests.unit.models.worker.test_models_worker import TASK as ONE
from tests.unit.models.worker.test_models_worker import windows

PEOPLE = np.array(["ann", "bob"])


def of_people(count: int = 24) -> WindowSet:
    return replace(window_set(9, count), group_B=np.repeat(PEOPLE, count // 2))


def test_groups_are_kept_on_disk_and_in_every_choice_of_windows(tmp_path: Path) -> None:
    windowset.save(tmp_path / "w.npz", of_people())
    read = windowset.load(tmp_path / "w.npz")
    assert read.group_B is not None
    assert read.group_B.tolist() == ["ann"] * 12 + ["bob"] * 12
    chosen = windowset.select(read, [0, 23]).group_B
    assert chosen is not None
    assert chosen.tolist() == ["ann", "bob"]
    joined = windowset.concat([windowset.select(read, [0]), window_set(1, 2)]).group_B
    assert joined is not None
    assert joined.tolist() == ["ann", "", ""]


@pytest.mark.parametrize(
    ("group", "words"),
    [(np.arange(24), "'group' holds int64, not text"), (PEOPLE, "the same number of windows")],
)
def test_groups_that_are_no_names_of_all_windows_are_refused(tmp_path: Path, group, words: str) -> None:
    windowset.save(tmp_path / "w.npz", replace(window_set(9), group_B=group))
    with pytest.raises(Misconfigured, match=words):
        windowset.load(tmp_path / "w.npz")


def test_each_group_is_judged_on_its_own_windows_and_one_without_labels_is_left_out() -> None:
    task, whole = task_of(**SMALL), windows_of(task_of(**SMALL), 1)
    count = len(whole)
    unlabelled = np.where(np.arange(count) < count - 2, whole.y_B, -1)
    names = np.where(np.arange(count) < 3, "a", np.where(np.arange(count) < count - 2, "b", "c"))
    whole = replace(whole, y_B=unlabelled, group_B=names)

    def always_first(part: WindowSet):
        return judge(part.y_B, np.tile(np.eye(len(task.labels), dtype=np.float32)[0], (len(part), 1)))

    found = in_parts(task, whole, always_first, ("group",))["group"]
    assert {name: metrics["windows"] for name, metrics in found.items()} == {"a": 3, "b": count - 5}
    for name in "ab":
        assert found[name]["accuracy"] == (whole.y_B[names == name] == 0).mean()


def test_windows_with_fewer_modalities_hold_nothing_of_the_others() -> None:
    task = task_of(**SMALL)
    whole, seen = windows_of(task, 1), {}
    inputs = [task.modality_names.index(name) for name in task.input_names]

    def look(part: WindowSet):
        read = tuple(task.modality_names[m] for m in inputs if part.present_BM[:, m].any())
        seen["+".join(read)] = part
        return judge(part.y_B, np.ones((len(part), len(task.labels)), np.float32))

    found = in_parts(task, whole, look, ("modalities",))["modalities"]
    assert list(found) == list(seen)
    assert set(found) == set(task.input_names)  # of two, each alone
    for name, part in seen.items():
        for other in set(task.input_names) - {name}:
            assert not part.x[other].any()
        np.testing.assert_array_equal(part.x[name], whole.x[name])


def test_a_worker_judges_parts_where_it_is_asked_to(tmp_path: Path) -> None:
    given = replace(windows(), group_B=np.repeat(PEOPLE, 4))
    windowset.save(tmp_path / "test.npz", given)
    state = method("qqr").client().initial(ONE, 7)
    job_folder.write_evaluate(
        tmp_path, job_folder.EvaluateJob(ONE, by=("group",)), tmp_path / "test.npz", state
    )
    assert __main__.answer(tmp_path) == {"ok": True}
    found = job_folder.read_evaluation(tmp_path)
    assert {name: metrics["windows"] for name, metrics in found.by["group"].items()} == {"ann": 4, "bob": 4}
    hits = sum(4 * metrics["accuracy"] for metrics in found.by["group"].values())
    assert hits == pytest.approx(8 * found.metrics["accuracy"])


async def test_history_shows_parts_target_metrics_and_what_scores_are_of(tmp_path: Path) -> None:
    (tmp_path / "w.npz").touch()
    async with bench(tmp_path, tiny_task(count=1), evaluation={"data": tmp_path / "w.npz"}) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.phase("done")
    file = str(write(tmp_path))
    done = CliRunner().invoke(coordinator, ["history", "-c", file, "--format", "json"])
    found = json.loads(done.stdout)
    assert found["versions"][-1]["by"]["group"]["ann"]["macro_f1"] == 0.75
    said = (
        CliRunner()
        .invoke(coordinator, ["history", "-c", file, "--by", "group"], env={"COLUMNS": "200"})
        .stdout
    )
    assert "version 1 was evaluated on 2 windows: a 1, b 1" in said
    assert "0.750" in said
    assert "side/accuracy" in said
    said = CliRunner().invoke(coordinator, ["history", "-c", file, "--by", "modalities"]).stdout
    assert 'evaluation.by = ["modalities"]' in " ".join(said.split())


def place(folder: Path) -> list[str]:
    (folder / "task.toml").write_text(TASK)
    (folder / "data").mkdir()
    windowset.save(folder / "data" / "one.npz", window_set(1))
    windowset.save(folder / "data" / "two.npz", window_set(2))
    windowset.save(folder / "test.npz", of_people())
    return [
        "--task",
        str(folder / "task.toml"),
        "--data",
        str(folder / "data"),
        "--test",
        str(folder / "test.npz"),
    ]


def test_simulate_prints_macro_f1_what_it_is_of_groups_and_how_far_it_is(tmp_path: Path) -> None:
    words = [*place(tmp_path), "--by", "group", "--alone", "--rounds", "1"]
    done = CliRunner().invoke(simulate, words, env={"COLUMNS": "150"})
    assert done.exit_code == 0, done.output
    for expected in ("macro F1", "evaluated on 24 windows: rest 12, move 12", "ann", "bob", "mean macro F1"):
        assert expected in done.stdout
    assert "alone: device 2 of 2, two" in done.stderr
    done = CliRunner().invoke(simulate, [*words, "--format", "json"])
    told = json.loads(done.stdout)
    assert told["judged_on"] == {"windows": 24, "by_class": {"rest": 12, "move": 12}, "groups": 2}
    assert {name: part["windows"] for name, part in told["by"]["group"].items()} == {"ann": 12, "bob": 12}


def test_scores_of_windows_of_one_class_are_reported_as_meaningless(tmp_path: Path) -> None:
    words = place(tmp_path)
    one = windowset.select(of_people(), of_people().y_B == 0)
    windowset.save(tmp_path / "test.npz", one)
    done = CliRunner().invoke(simulate, [*words, "--rounds", "1"], env={"COLUMNS": "150"})
    assert "all of them have one class: their accuracy says nothing" in done.stdout


def test_a_device_alone_is_judged_on_what_it_had_labels_for() -> None:
    task = task_of(**SMALL)
    test = held(9, (), ("label", "pose", "speed"))
    found = alone(task, {"a": FLEET["a"], "b": FLEET["b"]}, test, 1, rounds=1)
    assert not [name for name in found["a"].metrics if name.startswith(("pose/", "speed/"))]
    assert "label/accuracy" not in found["b"].metrics
    assert "speed/r2" in found["b"].metrics
    assert set(found["b"].metrics) >= {"accuracy", "windows"}  # of pose, the first that it had labels for
    only_label = held(9, (), ("label",))
    assert set(alone(task, {"a": FLEET["a"], "b": FLEET["b"]}, only_label, 1, rounds=1)) == {"a"}


def test_windows_cut_from_recordings_are_of_the_group_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    for name in PEOPLE:
        recording(tmp_path / f"{name}.npz")
    files = [str(tmp_path / f"{name}.npz") for name in PEOPLE]
    out = tmp_path / "out.npz"
    done = CliRunner().invoke(
        data, ["windows", *files, "--task", str(tmp_path / "task.toml"), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    groups = windowset.load(out).group_B
    assert groups is not None
    assert sorted(set(groups.tolist())) == ["ann", "bob"]


def test_scores_of_classes_follow_from_the_confusion() -> None:
    found = of_classes(("a", "b", "c", "d"), [[6, 2, 0, 0], [0, 4, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert {*found} == {"a", "b", "c"}, "a class that neither occurs nor is predicted has no scores"
    assert found["a"] == {"windows": 8, "recall": 0.75, "precision": 6 / 7, "f1": 12 / 15}
    assert found["c"] == {"windows": 1, "recall": 0, "precision": None, "f1": 0}
    assert of_classes(("a", "b"), [[0, 0], [2, 0]])["a"]["recall"] is None
