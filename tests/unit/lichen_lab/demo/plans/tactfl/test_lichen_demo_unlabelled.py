"""The pieces of the demo without labels that need no process: cast, recordings, labelled windows, telling."""

from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation.device_weights import kept
from coordinator.config.coordinator import load_settings
from edge_agent.config import agent as agent_config
from lichen_lab.demo.core import scenario
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.plans.tactfl import comparison, devices, steps
from lichen_lab.demo.plans.tactfl.prepare import (
    device_recording,
    draw_share,
    initial_results,
    labelled_windows,
    whole_recording,
)
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sensor_faults import FaultPlan
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.contract import Blobs, Evaluation, WindowSet
from models.data import window_set
from models.data.streams.recording import read
from models.guided import DeviceWeights
from models.registry import method
from protocol.tasks.task import Task
from runtime.settings.load import load_toml

TASK = devices.task(4, "labelled.npz", finetune_epochs=7)
OPTIONS = Options(Path("unused"), rounds=4)


def series(person: int, label: int, seconds: float = 30.0) -> spar.Series:
    t_T = np.arange(round(seconds * spar.RATE_HZ)) / spar.RATE_HZ
    x_TC = np.stack([np.sin((label + c + 1) * t_T) for c in range(6)], axis=1).astype(np.float32)
    return spar.Series(person, 0, label, x_TC)


@pytest.fixture
def everybody() -> tuple[spar.Series, ...]:
    """Made-up people who do three exercises each."""
    return tuple(series(watch.person, label) for watch in devices.DEVICES for label in (0, 2, 5))


def test_nobody_is_on_both_sides_and_one_watch_of_the_cast_is_broken() -> None:
    people = [*(watch.person for watch in devices.DEVICES), spar_fleet.OBSERVED, *spar_fleet.UNSEEN]
    assert len(people) == len(set(people))
    assert [watch.name for watch in devices.DEVICES if watch.broken] == [first_results().broken]
    assert any(len(watch.sensors) == 1 for watch in devices.DEVICES), "somebody is paired with itself"
    spec = method(TASK.method)
    spec.configure(TASK)
    spec.require_labelled(TASK)


def first_results():
    y_B = np.array([0, 0, 3], np.int64)
    empty = window_set.empty(TASK)
    x = {m: np.zeros((3, *x_BCT.shape[1:]), np.float32) for m, x_BCT in empty.x.items()}
    windows = WindowSet(x, np.ones((3, 2), np.bool_), np.ones((3, 2), np.float32), y_B)
    return initial_results(TASK, windows)


def test_the_results_begin_with_the_labelled_windows_by_class() -> None:
    results = first_results()
    assert results.labelled == [2, 0, 0, 1, 0, 0, 0]
    assert [device.name for device in results.devices] == [watch.name for watch in devices.DEVICES]


def test_the_written_configurations_are_what_the_daemons_read(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 1884)
    for watch in devices.DEVICES:
        write_toml(layout.config(watch.name), scenario.agent_config(layout, watch.name, 20.0))
        assert agent_config.read(layout.config(watch.name)).roles == ("observe", "train")
    write_toml(layout.config("coordinator"), scenario.coordinator_config(layout))
    layout.write_task(TASK)
    assert load_toml(Task, layout.config("task")) == TASK
    assert load_settings(layout.config("coordinator")).mqtt.port == 1884


def test_what_a_device_plays_says_nowhere_what_is_being_done(
    everybody: tuple[spar.Series, ...], tmp_path: Path
) -> None:
    for watch in devices.DEVICES:
        recorded = device_recording(everybody, watch, 0).recorded
        assert {key.rpartition("/")[0] for key in recorded} == set(watch.sensors)
        spar.save(tmp_path / "a.npz", recorded)
        found = read(tmp_path / "a.npz")
        assert len(found.label) == 0
        assert not found.targets
        windows = spar_fleet.windows(
            TASK, {**recorded, "label/t": found.label_t, "label/values": found.label}
        )
        assert len(windows) > 20
        assert (windows.y_B == -1).all()


def test_the_broken_watch_delivers_mostly_noise_and_the_others_what_was_measured(
    everybody: tuple[spar.Series, ...],
) -> None:
    for watch in devices.DEVICES:
        clean = whole_recording(everybody, watch.person, 0)
        own = device_recording(everybody, watch, 0)
        for name in watch.sensors:
            kept_n = np.isin(clean[f"{name}/t"], own.recorded[f"{name}/t"])
            wrong = own.recorded[f"{name}/values"] - clean[f"{name}/values"][kept_n]
            ratio = wrong.var() / clean[f"{name}/values"].var()
            assert ratio == pytest.approx(10 if watch.broken else 0, rel=0.1), watch.name


def test_the_seed_decides_the_order_of_exercises_and_the_faults(everybody: tuple[spar.Series, ...]) -> None:
    watch = devices.UnlabelledWatch("a", 4, "drops out", faults=FaultPlan(outage_time=1.0, block_s=5.0))
    first, again, other = (device_recording(everybody, watch, seed) for seed in (0, 0, 1))
    assert first.faults == again.faults != other.faults
    np.testing.assert_array_equal(first.recorded["gyroscope/values"], again.recorded["gyroscope/values"])


def test_a_tenth_of_each_persons_windows_of_each_exercise_is_labelled(
    everybody: tuple[spar.Series, ...],
) -> None:
    windows = labelled_windows(TASK, everybody, 0)
    counts = np.bincount(windows.y_B, minlength=7)
    # 30 s of an exercise are 22 windows.
    assert counts.tolist() == [2 * len(devices.DEVICES) if label in {0, 2, 5} else 0 for label in range(7)]
    assert windows.present_BM.all(), "of whole sensors, the broken watch's wearer included"
    np.testing.assert_array_equal(windows.y_B, labelled_windows(TASK, everybody, 0).y_B)
    window_set.check(windows, TASK)


def test_drawing_leaves_out_what_has_no_label_and_takes_one_of_a_rare_class() -> None:
    y_B = np.array([-1] * 50 + [1] * 20 + [3] * 2)
    found = draw_share(y_B, 0.1, np.random.default_rng(0))
    assert y_B[found].tolist() == [1, 1, 3]
    assert len(draw_share(np.full(5, -1), 0.1, np.random.default_rng(0))) == 0


def test_the_coordinators_weighings_are_told_round_by_round() -> None:
    weighing = DeviceWeights(
        weights={"encoder/gyroscope": {"cladonia": 0.7, "xanthoria": 0.3}},
        similarity={
            "encoder/gyroscope": {
                "cladonia": {"cladonia": 1.0, "xanthoria": -0.2},
                "xanthoria": {"cladonia": -0.2, "xanthoria": 1.0},
            }
        },
        warnings=("a group",),
    )
    results = first_results()
    # As the coordinator's history has it: a round that is still open has none.
    rounds = [{"round": 1, "weighing": kept(weighing, {}).as_json()}, {"round": 2, "weighing": None}]
    steps.take_weighings(results, {"rounds": rounds})
    (one,) = results.weighed
    assert one.round == 1
    assert one.weights == weighing.weights
    assert one.similarity == weighing.similarity
    assert one.warnings == ("a group",)
    assert results.relative("xanthoria") == pytest.approx(0.6)
    assert results.relative("lobaria") is None
    assert results.shares("cladonia", "encoder/gyroscope") == [(1, 0.7)]


def test_a_sensor_that_is_not_there_is_missing_from_every_window() -> None:
    results = first_results()
    for device in results.devices:
        device.missing = {"accelerometer": 0.25}
    steps.mark_absent_sensors(results, devices.DEVICES)
    missing = {device.name: device.missing for device in results.devices}
    assert missing["evernia"] == {"accelerometer": 0.25, "gyroscope": 1.0}
    assert missing["usnea"] == {"accelerometer": 0.25}


class _Trainer:
    """Counts instead of training."""

    def finish(self, task: Task, round_: int, seed: int, labelled: WindowSet, state: Blobs):
        assert (round_, len(labelled)) == (task.rounds.count, 3)
        epochs = np.array([task.config["finetune_epochs"], seed, state["head"]["head/w"][0]], np.float32)
        return {"head": {"head/w": epochs}}, {}


class _Client:
    def initial(self, _: Task, seed: int) -> Blobs:
        return {"head": {"head/w": np.array([100.0 * seed], np.float32)}}

    def evaluate(self, _: Task, __: WindowSet, state: Blobs) -> Evaluation:
        epochs, seed, begun = state["head"]["head/w"]
        assert begun == 100 * seed, "each seed begins with its own model"
        return Evaluation({"accuracy": float(epochs) / 100}, [])


def test_the_rivals_are_the_coordinators_training_without_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spec:
        def client(self) -> _Client:
            return _Client()

        def trainer(self) -> _Trainer:
            return _Trainer()

    monkeypatch.setattr(comparison, "method", lambda _: Spec())
    empty = window_set.empty(TASK)
    windows = WindowSet(
        {m: np.zeros((3, *x_BCT.shape[1:]), np.float32) for m, x_BCT in empty.x.items()},
        np.ones((3, 2), np.bool_),
        np.ones((3, 2), np.float32),
        np.array([0, 1, 2]),
    )
    window_set.save(tmp_path / "w.npz", windows)
    job = {
        "task": TASK.model_dump(mode="json"),
        "labelled": str(tmp_path / "w.npz"),
        "unseen": str(tmp_path / "w.npz"),
        "seeds": [0, 1],
    }
    results = first_results()
    steps.take_rivals(results, comparison.results(job))
    assert results.rival(comparison.RANDOM).accuracies == [0.0, 0.0], "its encoders are not trained"
    assert results.rival(comparison.LABELLED).accuracies == [pytest.approx(0.14)] * 2
