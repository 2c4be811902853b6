"""Real daemons: a device without torch teaches the fleet a class that no training device has."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from coordinator.cli.status import look
from coordinator.config.coordinator import load_settings
from coordinator.status import history
from coordinator.storage.database import Database
from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from models.contract import WindowSet
from models.data.streams.recording import read
from protocol.bundle import unpack
from protocol.errors import LichenError
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from runtime.storage.blob_store import BlobStore

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
REST, WALK, WAVE = range(3)
SEEN_S, LONG_S = 4.0, 240.0
ENCODER = Encoder(width=8, depth=2)


def task_of(rounds: int, devices: int) -> Task:
    return Task(
        name="gestures",
        labels=("rest", "walk", "wave"),
        modalities=(
            Modality(name="acc", channels=3, rate_hz=20),
            Modality(name="gyr", channels=2, rate_hz=20),
        ),
        window=Window(length_s=1.6, stride_s=0.8),
        network=Network(encoders={"acc": ENCODER, "gyr": ENCODER}, feature_dim=16, hidden_dim=16),
        rounds=Rounds(count=rounds, deadline_s=120, min_devices=devices, min_windows=40),
        config={"epochs": 4, "batch": 32, "quality": "none", "prototype_bits": 8},
    )


def record(path: Path, classes: tuple[int, ...], seed: int, seconds: float = LONG_S) -> Path:
    """Gestures that differ in frequency, strength and axis; the classes in turn, some seconds each."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * 20)) / 20
    turn = (t // SEEN_S).astype(int) % len(classes)
    label = np.array(classes)[turn]
    frequency = np.array([0.0, 1.3, 4.0])[label]
    phase = 2 * np.pi * np.cumsum(frequency) / 20
    wave = np.sin(phase)[:, None]
    acc = wave * np.array([[0.0, 0, 0], [1.5, 0.2, 0], [0, 0.5, 3.0]])[label]
    gyr = wave * np.array([[0.0, 0], [1.0, 0], [0, 2.0]])[label]
    changes = np.arange(0, seconds, SEEN_S)
    np.savez(
        path,
        **{
            "acc/t": t,
            "acc/values": (acc + rng.normal(0, 0.15, acc.shape)).astype(np.float32),
            "gyr/t": t,
            "gyr/values": (gyr + rng.normal(0, 0.15, gyr.shape)).astype(np.float32),
            "label/t": changes,
            "label/values": np.array(classes)[np.arange(len(changes)) % len(classes)],
        },
    )
    return path


def without_torch(*words: str) -> list[str]:
    """``lichen WORDS`` in an environment without torch; where there is none, with torch unimportable here."""
    python = ROOT / ".venv-observer" / "bin" / "python"
    probe = [str(python), "-P", "-c", "import lichen, onnxruntime"]
    if (
        python.is_file()
        and subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode == 0
    ):
        return [str(python), "-P", "-m", "lichen", *words]
    block = (
        "import sys; sys.modules['torch'] = None; sys.modules['onnx'] = None; "
        "from lichen.cli import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-P", "-c", block, *words]


class Gestures(ProcessFleet):
    """Processes of one test."""

    def prototyper(self, recording: Path, **settings: object) -> None:
        """An agent without torch that runs this checkout's code."""
        env = {**ONE_THREAD, "PYTHONPATH": str(ROOT)}
        self.agent(
            "proto",
            recording,
            speed=40,
            command=without_torch,
            env=env,
            roles=["observe", "prototype"],
            state_every_s=1.0,
            source=[{"kind": "replay", "file": str(recording), "speed": 20, "loop": True}],
            **settings,
        )

    def trainer(self, name: str, seed: int) -> None:
        file = record(self.root / f"{name}.npz", (REST, WALK), seed)
        quiet = {"infer": {"enabled": False}, "state_every_s": 1.0}
        self.agent(name, file, speed=40, env=ONE_THREAD, **quiet)

    def again(self, task: Task | None = None) -> None:
        """Start the coordinator once more, perhaps with more rounds."""
        if task is not None:
            self.files.write_task(task)
        self.start("coordinator")

    def history(self) -> dict:
        """What the coordinator's folder says; empty before it has one."""
        try:
            return history.read(self.files.state("coordinator"))
        except LichenError:  # it is only just being made
            return {"exports": [], "rounds": [], "version": -1}

    def waits(self) -> dict[str, str]:
        """What ``lichen coordinator status --why`` says."""
        file = self.files.state("coordinator") / "coordinator.sqlite3"
        if not file.is_file():
            return {}
        settings = load_settings(self.files.config("coordinator"))
        try:
            with Database(file, read_only=True) as store:
                return {wait.what: wait.why for wait in look(store, settings, time.time())[1]}
        except LichenError:
            return {}

    def bundle(self, version: int) -> bytes:
        digest = next(one["digest"] for one in self.history()["exports"] if one["version"] == version)
        return BlobStore(self.files.state("coordinator") / "blobs").get(digest)

    def has(self, version: int) -> bool:
        return any(one["version"] == version for one in self.history()["exports"])


@pytest.fixture
def fleet() -> Iterator[Gestures]:
    with Gestures(task_of(2, 2)) as made:
        made.broker()
        yield made


def recall(bundle: bytes, windows: WindowSet, label: int) -> float:
    """Share of a class's windows that the bundle's model gives that class."""
    manifest, files = unpack(bundle)
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
    feeds = {name: windows.x[name] for name in ("acc", "gyr")}
    feeds["present"] = windows.present_BM.astype(np.float32)
    (p_BK,) = session.run(["probabilities"], feeds)
    assert manifest.labels == ("rest", "walk", "wave")
    return float((p_BK.argmax(1) == label)[windows.y_B == label].mean())


@pytest.mark.long
def test_a_device_without_torch_teaches_the_fleet_a_class_that_no_training_device_has(
    fleet: Gestures,
) -> None:
    """With a SIGKILL of the coordinator while the graphs are made."""
    held_out = record(fleet.root / "held_out.npz", (REST, WALK, WAVE), 99, 120.0)
    windows = windows_of_recording(task_of(1, 1), read(held_out))
    fleet.coordinator(spread_s=0.5, export={"every_rounds": 0})
    fleet.trainer("left", 1)
    fleet.trainer("right", 2)
    fleet.until(lambda: fleet.has(2), 240, "two rounds of those that train, and a bundle")
    before = fleet.bundle(2)
    assert not (fleet.files.state("coordinator") / "jobs" / "features").exists()

    fleet.kill("coordinator")
    fleet.again(task_of(5, 3))
    own = record(fleet.root / "proto.npz", (WAVE, REST), 3)
    output = fleet.root / "predictions.jsonl"
    fleet.prototyper(own, infer={"output": str(output)})
    job = fleet.files.state("coordinator") / "jobs" / "features" / "job.json"
    fleet.until(job.exists, 120, "the graphs are being made")
    fleet.kill("coordinator")
    fleet.again()
    fleet.until(lambda: fleet.has(5), 300, "three more rounds with the device without torch")
    after = fleet.bundle(5)

    found = fleet.history()
    assert [version["devices"] for version in found["versions"][3:]] == [["left", "proto", "right"]] * 3
    assert found["refusals"] == []
    sizes = {u["device"]: u["size"] for u in found["rounds"][-1]["updates"]}
    assert sizes["proto"] < sizes["left"] / 3, "prototypes and nothing else"
    assert recall(before, windows, WAVE) <= 0.2
    assert recall(after, windows, WAVE) >= 0.8
    assert recall(after, windows, WALK) >= 0.8, "what the others taught is kept"
    maps = Path(f"/proc/{fleet.pid('proto')}/maps").read_text()
    assert "libtorch" not in maps
    fleet.until(
        lambda: output.is_file() and '"label": "wave"' in output.read_text(),
        120,
        "the device itself says wave",
    )


@pytest.mark.long
def test_graphs_that_were_made_are_found_after_a_kill_and_a_stranger_takes_no_part(fleet: Gestures) -> None:
    """The device has a modality of the task and one that it lacks; a second one has none of them."""
    fleet.coordinator(spread_s=0.5)
    file = record(fleet.root / "proto.npz", (WAVE, REST), 3)
    known = dict(np.load(file))
    odd = {key.replace("gyr", "ecg"): value for key, value in known.items()}
    np.savez(fleet.root / "odd.npz", **odd)
    fleet.prototyper(fleet.root / "odd.npz", infer={"enabled": False})
    stranger = {key.replace("acc", "eeg"): value for key, value in odd.items()}
    np.savez(fleet.root / "stranger.npz", **stranger)
    fleet.agent("stranger", fleet.root / "stranger.npz", speed=40, roles=["observe", "prototype"])

    def alone() -> bool:
        return "proto (waits for a device that trains)" in fleet.waits().get("devices", "")

    fleet.until(alone, 180, "the graphs are made, and a device that trains is missing")
    made = fleet.said("coordinator").count('"event": "feature_graphs"')
    assert made == 1
    assert "stranger" in fleet.waits()["devices"]
    fleet.kill("coordinator")
    fleet.again()
    fleet.until(
        lambda: fleet.said("coordinator").count('"event": "round_machine_open"') == 2, 60, "it is back"
    )
    fleet.until(alone, 60, "they are found again")
    assert fleet.said("coordinator").count('"event": "feature_graphs"') == made, "found, not made"
    fleet.until(lambda: "eeg" in fleet.said("stranger"), 60, "it says why it cannot do the task")
    fleet.trainer("left", 1)
    fleet.trainer("right", 2)
    fleet.until(lambda: fleet.history()["version"] >= 1, 240, "a round of all three")
    rounds = fleet.history()["rounds"]
    (update,) = [u for u in rounds[0]["updates"] if u["device"] == "proto"]
    assert set(update["counts"]) == {"acc"}
