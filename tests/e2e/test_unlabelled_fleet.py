"""Real daemons, no label on any device: agents learn by contrast, the coordinator by windows of its own."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from coordinator.status import history
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.model_registry import ModelRegistry
from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.fault_injection.harness.gates import VARIABLE, StepGates
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes.fleet_files import write_toml
from lichen_lab.simulation.processes.testbed import lichen
from models.data import window_set
from models.data.streams.recording import read
from protocol.bundle import unpack
from protocol.errors import LichenError
from protocol.tasks.folding import Aggregator
from protocol.tasks.labelling import Labelled
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from runtime.storage.blob_store import BlobStore

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LABELS = ("rest", "walk", "wave")
TURN_S = 4.0
ENCODER = Encoder(width=8, depth=2)
TASK = Task(
    name="gestures",
    method="tactfl",
    labels=LABELS,
    modalities=(Modality(name="acc", channels=3, rate_hz=20), Modality(name="gyr", channels=2, rate_hz=10)),
    window=Window(length_s=1.6, stride_s=0.8, context_s=2.4),
    network=Network(encoders={"acc": ENCODER, "gyr": ENCODER}, feature_dim=16, hidden_dim=16),
    rounds=Rounds(count=2, deadline_s=120, min_devices=3, min_windows=60),
    aggregator=Aggregator(kind="fedadam", lr=0.01),
    labelled=Labelled(file="own.npz"),
    config={"epochs": 2, "batch": 32, "finetune_epochs": 2, "finetune_head": "warm"},
)


def record(path: Path, seed: int, seconds: float, *, labels: bool = False, gyr: bool = True) -> Path:
    """Gestures that differ in frequency, strength and axis, some seconds each."""
    rng = np.random.default_rng(seed)
    known = {}
    for name, rate, strength in (
        ("acc", 20, [[0.0, 0, 0], [1.5, 0.2, 0], [0, 0.5, 3.0]]),
        ("gyr", 10, [[0.0, 0], [1.0, 0], [0, 2.0]]),
    ):
        t = np.arange(round(seconds * rate)) / rate
        label = (t // TURN_S).astype(int) % len(LABELS)
        phase = 2 * np.pi * np.cumsum(np.array([0.0, 1.3, 4.0])[label]) / rate
        values = np.sin(phase)[:, None] * np.array(strength)[label]
        known |= {f"{name}/t": t, f"{name}/values": values + rng.normal(0, 0.15, values.shape)}
    if labels:
        changes = np.arange(0, seconds, TURN_S)
        known |= {"label/t": changes, "label/values": np.arange(len(changes)) % len(LABELS)}
    if not gyr:
        known = {key: values for key, values in known.items() if not key.startswith("gyr/")}
    np.savez(path, **known)
    return path


@pytest.fixture
def fleet() -> Iterator[ProcessFleet]:
    with ProcessFleet(TASK) as made:
        made.broker()
        yield made


def found(state_dir: Path) -> dict:
    """What the coordinator's folder says; nothing before it has one."""
    try:
        return history.read(state_dir)
    except LichenError:
        return {"version": -1, "exports": [], "versions": []}


def manifest_of(state_dir: Path, version: int) -> str:
    return found(state_dir)["versions"][version]["manifest"]


@pytest.mark.long
def test_a_fleet_learns_without_a_label_and_a_coordinator_cut_off_before_it_publishes_does_the_same_again(
    fleet: ProcessFleet,
) -> None:
    root, gates = fleet.root, StepGates(fleet.root / "gates")
    record(fleet.files.config("task").with_name("own.npz"), 50, 60.0, labels=True)
    held_out = windows_of_recording(TASK, read(record(root / "held_out.npz", 51, 90.0, labels=True)))
    window_set.save(root / "test.npz", held_out)
    state, twin = fleet.files.state("coordinator"), fleet.files.state("twin")
    config = fleet.files.config("coordinator")
    settings = fleet.files.coordinator(evaluation={"data": str(root / "test.npz")})
    write_toml(config, settings)
    gates.hold("finish-1")
    module = "lichen_lab.benchmarks.fault_injection.harness.gated_coordinator"
    fleet.start(
        "coordinator",
        [sys.executable, "-P", "-m", module, str(config)],
        {**ONE_THREAD, VARIABLE: str(gates.folder)},
    )
    for seed, name in enumerate(("arm", "left", "right")):
        file = record(root / f"{name}.npz", seed, 240.0, gyr=name != "arm")
        fleet.agent(name, file, speed=40, env=ONE_THREAD, infer={"enabled": False}, state_every_s=1.0)
    fleet.until(lambda: gates.reached("finish-1"), 240, "all updates are looked at, and nothing is published")
    assert found(state)["version"] == 0
    shutil.copytree(state, twin)  # what a kill at this moment would leave
    gates.release("finish-1")
    fleet.until(lambda: bool(found(state)["exports"]), 240, "two rounds and a bundle")

    nowhere = {"host": "127.0.0.1", "port": 1}
    write_toml(again := fleet.files.config("twin"), settings | {"state_dir": str(twin), "mqtt": nowhere})
    fleet.start("twin", lichen("coordinator", "serve", "--config", str(again)), ONE_THREAD)
    fleet.until(lambda: found(twin)["version"] == 1, 120, "the cut-off round is done again, without a broker")
    assert manifest_of(twin, 1) == manifest_of(state, 1)

    told = found(state)
    first, last = told["rounds"]
    assert first["weighing"] == found(twin)["rounds"][0]["weighing"]
    for one in (first, last):
        assert one["counted"] == ["arm", "left", "right"]
        counts = [sum(classes) for update in one["updates"] for classes in update["counts"].values()]
        assert not any(counts), "no label went up"
        weights = one["weighing"]["weights"]
        assert {part: sorted(by_device) for part, by_device in weights.items()} == {
            "encoder/acc": ["arm", "left", "right"],
            "encoder/gyr": ["left", "right"],
        }
        assert all(sum(by_device.values()) == pytest.approx(1.0, abs=1e-5) for by_device in weights.values())
        assert set(one["weighing"]["similarity"]["encoder/acc"]["arm"]["others"]) == {"left", "right"}
    assert told["refusals"] == []
    accuracies = [version["metrics"]["accuracy"] for version in told["versions"]]
    assert accuracies[-1] > max(0.8, accuracies[0]), accuracies

    blobs = BlobStore(state / "blobs")
    with Database(state / DATABASE, read_only=True) as store:
        names = set(ModelRegistry(store, blobs, TASK).manifest(manifest_of(state, 2)).blobs)
    moments = {name for name in names if name.startswith("optimizer/")}
    assert names - moments == {"encoder/acc", "encoder/gyr", "head"}
    assert len(moments) == 4, "of both encoders; the head is trained here"
    bundle = blobs.get(told["exports"][-1]["digest"])
    manifest, files = unpack(bundle)
    assert "own.npz" not in json.dumps(manifest.model_dump(mode="json"))
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
    feeds = {**held_out.x, "present": held_out.present_BM.astype(np.float32)}
    (p_BK,) = session.run(["probabilities"], feeds)
    right_B = p_BK.argmax(1) == held_out.y_B
    assert right_B[held_out.y_B >= 0].mean() == pytest.approx(accuracies[-1], abs=0.02)
