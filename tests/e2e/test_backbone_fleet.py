"""Real daemons: a head over a frozen backbone, learned with torch, without torch, and by prototypes."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from lichen_lab.simulation.processes.testbed import lichen
from models.backbones import files
from models.backbones.views import announced
from models.backbones.windows import learned
from models.contract import WindowSet
from models.data import window_set
from models.data.streams.recording import Recording, Stream, write_npz
from protocol.bundle import unpack
from protocol.tasks.kinds import Backbone
from protocol.tasks.network import Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from tests.e2e.test_prototype_fleet import ONE_THREAD, ROOT, Gestures, without_torch
from tests.support.backbones import backbone, weights, write

pytestmark = [pytest.mark.long, pytest.mark.mosquitto]
SIDE, D, ROUNDS = 96, 64, 6
LABELS = ("left", "middle", "right")
CAMERA = Modality(
    name="camera", kind="image", channels=1, height=SIDE, width=SIDE, rate_hz=5, offset=128, scale=64,
    backbone=Backbone(file="eye.onnx"),
)  # fmt: skip


def task_of(rounds: int = ROUNDS, devices: int = 3) -> Task:
    return Task(
        name="looks",
        labels=LABELS,
        modalities=(CAMERA,),
        window=Window(length_s=1.0, stride_s=0.5),
        network=Network(kind="linear"),
        rounds=Rounds(count=rounds, deadline_s=120, min_devices=devices, min_windows=40),
        config={"epochs": 3, "batch": 32, "lr": 0.3, "quality": "none"},
    )


def images(label_B: np.ndarray, seed: int) -> np.ndarray:
    """A bright stripe at the left, in the middle or at the right, in noise: (B, side, side) uint8."""
    rng = np.random.default_rng(seed)
    image_BHW = rng.integers(60, 180, (len(label_B), SIDE, SIDE))
    for b, label in enumerate(label_B):
        at = 8 + 32 * label + rng.integers(-4, 5)
        image_BHW[b, :, at : at + 16] += 60
    return image_BHW.clip(0, 255).astype(np.uint8)


def record(path: Path, seed: int, seconds: float = 120.0) -> Path:
    t = np.arange(round(seconds * 5)) / 5
    change_t = np.arange(0, seconds, 4.0)
    label = (np.arange(len(change_t)) + seed) % 3
    label_B = label[np.minimum((t // 4).astype(int), len(label) - 1)]
    pixels = images(label_B, seed).reshape(len(t), -1)
    write_npz(
        path, Recording({"camera": Stream(t, pixels, size=(1, SIDE, SIDE))}, change_t, label.astype(np.int64))
    )
    return path


def unseen(count: int = 90) -> WindowSet:
    y_B = np.arange(count) % 3
    x = images(y_B, 999).reshape(count, 1, -1).astype(np.float32)
    ones = np.ones((count, 1))
    return WindowSet({"camera": x}, ones.astype(np.bool_), ones.astype(np.float32), y_B.astype(np.int64))


class Fleet(Gestures):
    """Devices that look."""

    def looks(self, name: str, seed: int, *roles: str, torch: bool = True) -> None:
        file = record(self.root / f"{name}.npz", seed)
        self.agent(
            name,
            file,
            speed=20,
            command=lichen if torch else without_torch,
            env={**ONE_THREAD, "PYTHONPATH": str(ROOT)},
            roles=["observe", *roles],
            infer={"output": str(self.root / f"{name}.jsonl")},
            source=[{"kind": "replay", "file": str(file), "speed": 10, "loop": True}],
            state_every_s=1.0,
        )

    def predicts(self, name: str) -> bool:
        """Whether a device has predicted with the last version."""
        output = self.root / f"{name}.jsonl"
        return output.is_file() and f'"version": {ROUNDS}' in output.read_text()

    def status(self, name: str) -> dict[str, Any]:
        file = self.files.state(name) / "cache" / "status.json"
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):
            return {}
        return found


@pytest.fixture
def fleet(broker: Any) -> Iterator[Fleet]:
    with Fleet(task_of(), broker.port) as made:
        write(
            made.files.root / "config" / "eye.onnx",
            backbone(("b", 1, SIDE, SIDE), weights(SIDE * SIDE, D)),
        )
        yield made


def test_a_fleet_learns_a_head_over_a_backbone_with_and_without_torch(fleet: Fleet) -> None:
    folder = fleet.files.config("task").parent
    file = folder / "eye.onnx"
    window_set.save(fleet.root / "test.npz", unseen())
    fleet.coordinator(
        ONE_THREAD,
        spread_s=0.5,
        export={"every_rounds": 0},
        evaluation={"data": str(fleet.root / "test.npz")},
    )
    fleet.looks("torch", 1, "train")
    fleet.looks("bare", 2, "train", torch=False)
    fleet.looks("proto", 3, "prototype", torch=False)
    fleet.until(lambda: fleet.has(ROUNDS), 400, "rounds of all three, and a bundle that passed its gate")
    found = fleet.history()
    assert [one["devices"] for one in found["versions"][1:]] == [["bare", "proto", "torch"]] * ROUNDS
    assert found["refusals"] == []
    assert found["versions"][-1]["metrics"]["accuracy"] >= 0.9
    sizes = {u["device"]: u["size"] for u in found["rounds"][-1]["updates"]}
    whole = file.stat().st_size + 4 * (D * 3 + 3)
    assert max(sizes.values()) <= 0.02 * whole, (sizes, whole)
    task = files.prepare(task_of(), folder)
    manifest, _ = unpack(bundle := fleet.bundle(ROUNDS))
    assert manifest.modalities == announced(task).modalities
    assert len(bundle) < 0.02 * whole + 20_000
    assert learned(task, unseen(9), folder).x["camera"].shape == (9, D, 1)
    for name in ("torch", "bare", "proto"):
        fleet.until(partial(fleet.predicts, name), 120, f"{name} predicts")
        about = fleet.status(name)["backbones"]["camera"]
        assert about["why"] == "ok", about
        maps = Path(f"/proc/{fleet.pid(name)}/maps").read_text()
        assert "libtorch" not in maps
        assert "onnxruntime" not in maps, "it runs in a process of its own"
        blobs = [
            path
            for path in (fleet.files.state(name) / "cache" / "blobs").glob("??/*")
            if path.stat().st_size > 2**20
        ]
        assert len(blobs) == 1, "fetched once, and kept"
    maps = Path(f"/proc/{fleet.pid('coordinator')}/maps").read_text()
    assert "libtorch" not in maps
    assert "onnxruntime" not in maps
    assert exported_whole(fleet) >= 0.9


def exported_whole(fleet: Fleet) -> float:
    """Accuracy of backbone and head in one file, which is exported while the coordinator runs."""
    out, config = fleet.root / "whole.onnx", fleet.files.config("coordinator")
    words = ["export", "--config", str(config), "--merge-backbone", "--out", str(out)]
    done = subprocess.run(lichen(*words), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "backbones of camera inside" in done.stdout
    given = unseen()
    inputs = {"present": np.ones((len(given), 1), np.float32), "camera": given.x["camera"]}
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (p_BK,) = session.run(["probabilities"], inputs)
    return float((p_BK.argmax(axis=1) == given.y_B).mean())
