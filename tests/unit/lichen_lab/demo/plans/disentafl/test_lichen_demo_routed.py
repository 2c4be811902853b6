"""The routed demo's pieces that need no process: cast, recordings, what an onlooker sees, judgement."""

import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.config.coordinator import load_settings
from edge_agent.config import agent as agent_config
from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.demo import plans
from lichen_lab.demo.core import scenario
from lichen_lab.demo.core.scenario import Layout, Options
from lichen_lab.demo.core.traffic import BUNDLE, MANIFEST, OTHER, TrafficCounter
from lichen_lab.demo.plans.disentafl import collect_results, devices, evaluation
from lichen_lab.demo.plans.disentafl.prepare import initial_results, restrict, turning_speed, whole_recording
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.contract import Profile
from models.data import window_set
from models.data.streams.recording import read
from models.data.window_set import target
from models.methods.disentafl.client import DisentAflClient
from models.methods.disentafl.routing import blob_names
from models.registry import method
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from protocol.frames.headers import Manifest
from protocol.messages import BlobRef, ModelPointer, Offer, encode
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.settings.load import load_toml

TASK = devices.task(9)


def test_every_demo_is_found_by_its_folder_and_is_a_methods() -> None:
    assert plans.DEFAULT in plans.names()
    assert {"disentafl", "qqr"} <= set(plans.names())
    for name in plans.names():
        assert method(name).name == name
    with pytest.raises(Misconfigured, match="there are disentafl, "):
        plans.demo("nonsense")


def test_the_cast_differs_in_sensors_and_targets_and_no_person_is_on_both_sides() -> None:
    people = [*(watch.person for watch in devices.DEVICES), devices.OBSERVED.person, *spar_fleet.UNSEEN]
    assert len(people) == len(set(people))
    kinds = {(watch.sensors, watch.later, watch.targets) for watch in devices.DEVICES}
    assert len(kinds) == len(devices.DEVICES)
    assert (devices.OBSERVED.sensors, (), devices.OBSERVED.targets) not in kinds
    learned = {(sensor, target) for w in devices.DEVICES for sensor in w.sensors for target in w.targets}
    assert {(s, t) for s in devices.OBSERVED.sensors for t in devices.OBSERVED.targets} <= learned
    method(TASK.method).configure(TASK)


def test_the_written_configurations_are_what_the_daemons_read(tmp_path: Path) -> None:
    layout, options = Layout(tmp_path, 1884, start_s={"xanthoria": 12.5}), Options(tmp_path)
    for watch in devices.DEVICES:
        write_toml(layout.config(watch.name), devices.watch_config(layout, watch, options))
        assert agent_config.read(layout.config(watch.name)).learn.max_windows == devices.MAX_WINDOWS
    sources = agent_config.read(layout.config("xanthoria")).source
    assert [source["kind"] for source in sources] == ["replay", "hotplug"]
    assert [source["start_s"] for source in sources] == [12.5, 12.5], "started again, both go on at one time"
    write_toml(layout.config("physcia"), devices.observing_config(layout))
    assert agent_config.read(layout.config("physcia")).roles == ("observe",)
    write_toml(layout.config("coordinator"), scenario.coordinator_config(layout))
    layout.write_task(TASK)
    assert load_toml(Task, layout.config("task")) == TASK
    assert load_settings(layout.config("coordinator")).mqtt.port == 1884


def series(label: int, side: int, speed: float, seconds: float) -> spar.Series:
    x_TC = np.zeros((round(seconds * spar.RATE_HZ), 6), np.float32)
    x_TC[:, 0], x_TC[:, 4] = 1.0, speed
    return spar.Series(1, side, label, x_TC)


def test_windows_carry_the_labels_of_all_targets_that_a_device_has(tmp_path: Path) -> None:
    own = [series(2, 1, 3.0, 20.5), series(4, 0, 1.0, 20.5)]
    recorded = whole_recording(own, 0)
    kept = restrict(recorded, ("accelerometer",), ("label", devices.SPEED))
    assert {key.rpartition("/")[0] for key in kept} == {"accelerometer", "label", "target/speed"}
    spar.save(tmp_path / "a.npz", recorded)
    windows = windows_of_recording(TASK, read(tmp_path / "a.npz"))
    spar.save(tmp_path / "a.npz", kept)
    fewer = windows_of_recording(TASK, read(tmp_path / "a.npz"))
    known = windows.y_B >= 0
    assert set(windows.y_B[known]) == {2, 4}
    np.testing.assert_array_equal(target(windows, devices.ARM)[known], windows.y_B[known] == 2)
    np.testing.assert_allclose(
        target(windows, devices.SPEED)[known & (windows.y_B == 2)][:-1], 3.0, rtol=1e-6
    )
    assert np.isnan(target(fewer, devices.ARM)).all()
    assert not fewer.present_BM[:, 1].any()
    np.testing.assert_array_equal(target(fewer, devices.SPEED), target(windows, devices.SPEED))


def test_a_step_of_turning_speed_is_the_mean_length_of_the_angular_velocity() -> None:
    x_TC = np.zeros((40, 6), np.float32)
    x_TC[:, :3] = 9.0
    x_TC[16:, 3:] = [1.0, 2.0, -2.0]
    np.testing.assert_allclose(turning_speed(x_TC), [0.0, 3.0])


@pytest.fixture
def onlooker() -> TrafficCounter:
    """Two rounds of one device, and a bundle."""
    seen = TrafficCounter("demo")
    refs = {
        name: BlobRef(digest=digest(name.encode()), size=len(name))
        for name in ("base/gyroscope", "gate/gyroscope")
    }
    manifest = encode(Manifest(task="t", method="m", version=0, blobs=refs))

    def down(data: bytes, name: str) -> None:
        seen.apply(device_topic("demo", "usnea", Kind.DOWN_BLOB, digest(name.encode()), 0), data)

    for number in (1, 2):
        offer = Offer(task="t", round=number, base=digest(manifest), base_size=9, closes_in_s=9.0)
        seen.apply(broadcast_topic("demo", Kind.OFFER), encode(offer))
        seen.apply(device_topic("demo", "usnea", Kind.DOWN_BLOB, digest(manifest), 0), manifest)
        down(b"12345", "gate/gyroscope")
        seen.apply(device_topic("demo", "usnea", Kind.UPDATE), b"x" * 10 * number)
    down(b"12345678", "base/gyroscope")
    pointer = ModelPointer(task="t", version=2, bundle=BlobRef(digest=digest(b"zip"), size=3))
    seen.apply(device_topic("demo", "usnea", Kind.MODEL), encode(pointer))
    down(b"zip", "zip")
    down(b"??", "what")
    seen.apply("not/ours", b"")
    return seen


def test_an_onlooker_names_what_is_fetched_and_counts_it_by_round(onlooker: TrafficCounter) -> None:
    turns = onlooker.turns()["usnea"]
    assert list(turns) == [1, 2]
    assert turns[1].blobs == ("gate/gyroscope",)
    assert turns[2].blobs == ("base/gyroscope", "gate/gyroscope")
    assert (turns[1].up, turns[2].up) == (10, 20)
    assert turns[2].down["base/gyroscope"] == 8
    assert (turns[2].down[BUNDLE], turns[2].down[OTHER]) == (3, 2)
    assert turns[2].model_bytes == turns[2].down[MANIFEST] + 5 + 8 + 2
    assert onlooker.sizes == {"base/gyroscope": 14, "gate/gyroscope": 14}


def test_a_move_says_whose_route_it_was_and_what_was_fetched_beside_it(onlooker: TrafficCounter) -> None:
    results = initial_results(TASK)
    route = blob_names.route(TASK, Profile(("gyroscope",)), (1,))
    rows = [{"round": n, "device": "usnea", "blobs": list(route)} for n in (1, 2)]
    rows.append({"round": 1, "device": "stranger", "blobs": list(route)})
    collect_results.add_moves(results.devices, TASK, rows, onlooker.turns())
    (usnea,) = [device for device in results.devices if device.moves]
    assert [move.stray for move in usnea.moves] == [(), ()]
    assert usnea.moves[0].route == route
    assert (usnea.moves[0].modalities, usnea.moves[0].targets, usnea.moves[0].domain) == (
        ("gyroscope",),
        ("label",),
        1,
    )
    assert [move.up for move in usnea.moves] == [10, 20]
    assert len(usnea.changes) == 1
    other = blob_names.route(TASK, Profile(("accelerometer",)), (0,))
    collect_results.add_moves(results.devices, TASK, [{**rows[0], "blobs": list(other)}], onlooker.turns())
    assert usnea.moves[-1].stray == ("gate/gyroscope",)
    whole = blob_names.route(TASK, Profile(TASK.input_names, TASK.target_names), (0, 1))
    collect_results.add_moves(
        results.devices, TASK, [{"round": 1, "device": "lobaria", "blobs": list(whole)}], {}
    )
    (lobaria,) = [device for device in results.devices if device.name == "lobaria"]
    own = blob_names.route(TASK, Profile(("gyroscope",)), (0,))
    assert set(lobaria.moves[0].stray) == set(whole) - set(own), "it has a gyroscope and learns the exercise"


def test_scores_are_of_windows_with_a_label() -> None:
    windows = window_set.empty(TASK)
    windows = type(windows)(
        x={m: np.zeros((4, *x.shape[1:]), np.float32) for m, x in windows.x.items()},
        present_BM=np.ones((4, 2), np.bool_),
        quality_BM=np.ones((4, 2), np.float32),
        y_B=np.array([0, 1, 2, -1]),
        targets={devices.SPEED: np.array([1, 2, np.nan, 3], np.float32)},
    )
    made = {
        "probabilities": np.eye(7, dtype=np.float32)[[0, 1, 5, 3]],
        "arm/probabilities": np.ones((4, 2), np.float32),
        "speed/value": np.array([1, 2, 99, 2], np.float32),
    }
    found = evaluation.scores(TASK.objectives, made, windows)
    assert found == pytest.approx({"label": 2 / 3, devices.SPEED: 0.5})
    seen = evaluation.restrict_sensors(TASK, windows, ("gyroscope",))
    assert seen.present_BM.tolist() == [[False, True]] * 4


def test_a_device_alone_keeps_what_a_device_in_the_fleet_keeps(monkeypatch) -> None:
    small = {"width": 8, "latent": 4, "hidden": 4, "heads": 1, "tokens": 2, "bottleneck": 1}
    task = devices.task(2, **small)
    given: list[set[str]] = []

    def spied(self: DisentAflClient, context, windows, state, private):
        given.append({name.split("/", 1)[0] for name in private})
        return train(self, context, windows, state, private)

    train = DisentAflClient.train
    monkeypatch.setattr(DisentAflClient, "train", spied)
    empty = window_set.empty(task)
    windows = type(empty)(
        x={m: np.ones((4, *x.shape[1:]), np.float32) for m, x in empty.x.items()},
        present_BM=np.ones((4, 2), np.bool_),
        quality_BM=np.ones((4, 2), np.float32),
        y_B=np.array([0, 1, 2, 0]),
        targets={},
    )
    found = evaluation.by_itself(task, Profile(("gyroscope",), ("label",)), windows, windows, 0)
    assert set(found) == {"label"}
    assert given == [set(), {"moments"}]


def test_what_an_observer_says_is_read_by_version(tmp_path: Path) -> None:
    line = {
        "t": 2.56,
        "label": "PEN",
        "probabilities": [0.9, 0.1],
        "targets": {
            "arm": {"label": "left", "probabilities": [1, 0], "truth": "right"},
            "speed": {"value": 2.0, "truth": 1.5},
        },
        "present": {},
        "truth": "PEN",
        "version": 4,
    }
    other = {**line, "t": 3.84, "truth": None, "targets": {"speed": {"value": 1.0, "truth": 0.5}}}
    file = tmp_path / "p.jsonl"
    rows = [line, other, {**line, "version": 3}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"t":')
    said = collect_results.predictions_of(file, 4)
    assert len(said) == 2
    assert collect_results.share_right(said) == {"label": 1.0, "arm": 0.0}
    pairs = collect_results.regression_values(said, devices.SPEED)
    assert pairs == [(2.56, 2.0, 1.5), (3.84, 1.0, 0.5)]
    assert collect_results.r2(pairs) == pytest.approx(0.0)
    assert collect_results.r2([]) is None
