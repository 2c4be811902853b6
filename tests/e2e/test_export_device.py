"""From a global state to a prediction on a device: the export process, then a process without torch."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.contract import Blobs, WindowSet
from models.data import window_set
from models.multimodal.network import two_branch_task
from models.registry import method
from models.worker.job_folder import write_state
from protocol.bundle import unpack
from protocol.frames.frame import digest, encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from runtime.storage.blob_store import BlobStore

pytestmark = pytest.mark.long

TASK = two_branch_task()
REAL = "windows.npz"
BASE, PARENT = "ab" * 32, "cd" * 32

DEVICE = """
import json, sys
for name in ("torch", "onnx", "onnxscript", "models", "export"):
    sys.modules[name] = None
import numpy as np, onnxruntime
from protocol.bundle import unpack
manifest, files = unpack(open(sys.argv[1], "rb").read())
session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
x = np.load(sys.argv[2])
feed = {name: x[name] for name in manifest.inputs}
p, logits = session.run(list(manifest.outputs), feed)
print(json.dumps({"p": p.tolist(), "labels": [manifest.labels[k] for k in p.argmax(1)]}))
"""


def run(*arguments: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=cwd,
        input=text,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def global_state() -> Blobs:
    """A fresh network with prototypes for all classes but one."""
    state = method(TASK.method).client().initial(TASK, 7)
    rng = np.random.default_rng(0)
    for name in TASK.modality_names:
        table = state[f"prototypes/{name}"]
        table[f"prototypes/{name}/values"] = rng.standard_normal((6, 128)).astype(np.float32)
        table[f"prototypes/{name}/rounds"] = np.array([2, 1, 3, 0, 1, 1], np.float32)
    return state


def real_windows() -> WindowSet:
    """As a coordinator's evaluation.data."""
    rng = np.random.default_rng(4)
    x = {name: rng.standard_normal((48, 3, 128)).astype(np.float32) for name in TASK.modality_names}
    present = np.ones((48, 2), np.bool_)
    return WindowSet(x, present, np.ones((48, 2), np.float32), np.arange(48) % 6)


def job_folder(folder: Path, state: Blobs) -> Path:
    folder.mkdir()
    write_state(folder / "state.npz", state)
    window_set.save(folder / REAL, real_windows())
    job = {
        "kind": "export",
        "task": TASK.model_dump(mode="json"),
        "version": 4,
        "round": 4,
        "manifest_digest": BASE,
        "parent": PARENT,
        "metrics": {"accuracy": 0.9},
        "calibrate": str(folder / REAL),
    }
    (folder / "job.json").write_text(json.dumps(job))
    return folder


@dataclass(frozen=True)
class Served:
    """What one warm export process left after several jobs."""

    answers: list[dict[str, object]]
    folders: list[Path]
    state: Blobs


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    here, state = tmp_path_factory.mktemp("export"), global_state()
    lacking = {name: blob for name, blob in state.items() if name != "head"}
    folders = [
        job_folder(here / "a", state),
        job_folder(here / "wrong", lacking),
        job_folder(here / "b", state),
    ]
    lines = "".join(json.dumps({"job": str(folder)}) + "\n" for folder in folders)
    # A folder called models where the user stands must not be imported.
    (here / "models").mkdir()
    (here / "models" / "__init__.py").write_text("raise RuntimeError('a foreign models')")
    done = run("-m", "export", "--serve", cwd=here, text=lines + "{}\n")
    assert done.returncode == 0, done.stderr
    return Served([json.loads(line) for line in done.stdout.splitlines()], folders, state)


def windows() -> dict[str, NDArray[np.float32]]:
    """Four windows: everything there, no gyroscope, no accelerometer, nothing; NaN in what is missing."""
    rng = np.random.default_rng(1)
    present = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], np.float32)
    x = {name: rng.standard_normal((4, 3, 128)).astype(np.float32) for name in TASK.modality_names}
    for m, name in enumerate(TASK.modality_names):
        x[name][present[:, m] == 0] = np.nan
    return {"present": present, **x}


def test_export_process_answers_every_job_and_survives_a_wrong_one(served: Served) -> None:
    first, wrong, third, no_job = served.answers
    assert first == third == {"ok": True}
    assert wrong["ok"] is False
    assert wrong["kind"] == "Refused"
    assert "head/" in str(wrong["error"])
    assert no_job["kind"] == "Fault"
    assert not (served.folders[1] / "bundle.zip").exists()


def test_bundle_says_what_it_is_and_repeats_to_the_byte(served: Served) -> None:
    bundles = [(served.folders[i] / "bundle.zip").read_bytes() for i in (0, 2)]
    assert bundles[0] == bundles[1]
    manifest, files = unpack(bundles[0])
    assert manifest.variants is not None, manifest.parity["int8"]
    assert set(files) == {"model.onnx", manifest.variants["int8"].file}
    assert manifest.parity["samples"] == {name: [128, 64, 129, 256] for name in TASK.modality_names}
    assert (manifest.version, manifest.round, manifest.base, manifest.parent) == (4, 4, BASE, PARENT)
    assert manifest.inputs == ("present", "accelerometer", "gyroscope")
    assert manifest.outputs == ("probabilities", "logits")
    assert manifest.samples == {"accelerometer": 128, "gyroscope": 128}
    assert manifest.labels == TASK.labels
    assert manifest.metrics == {"accuracy": 0.9}
    assert manifest.parity["masks"] == 4
    result = json.loads((served.folders[0] / "result.json").read_text())
    assert result["size"] == len(bundles[0])
    assert result["digest"] == digest(bundles[0])
    assert result["parity"]["max_difference"] <= 1e-4
    assert result["parity"]["latency_ms"] > 0


def test_a_device_without_torch_predicts_with_a_missing_modality(served: Served, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **windows())
    (tmp_path / "device.py").write_text(DEVICE)
    done = run("device.py", str(served.folders[0] / "bundle.zip"), "x.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    p = np.array(said["p"])
    assert np.allclose(p.sum(1), 1, atol=1e-5)
    assert np.allclose(p[3], 1 / 6)
    assert set(said["labels"]) <= set(TASK.labels)
    # What the coordinator measured is what the device does.
    x = windows()
    present = x.pop("present") > 0
    clean = {name: np.nan_to_num(values) for name, values in x.items()}
    best = p.argmax(1)
    judged = WindowSet(clean, present, np.ones((4, 2), np.float32), best.astype(np.int64))
    assert method(TASK.method).client().evaluate(TASK, judged, served.state).metrics["accuracy"] == 1.0


def test_the_command_makes_the_same_bundle_from_blobs(served: Served, tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    refs = {
        name: store.put(
            encode_frame(
                BlobHeader(name=name), {path: encode(x, Codec.FLOAT32) for path, x in tensors.items()}
            )
        )
        for name, tensors in served.state.items()
    }
    manifest = Manifest(
        task=TASK.name, method=TASK.method, version=4, parent=PARENT, blobs=refs
    ).model_dump_json()
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "task.toml").write_text(as_toml())
    window_set.save(tmp_path / REAL, real_windows())
    words = ["--blobs", "blobs", "--manifest", "manifest.json", "--task", "task.toml", "--out", "out.zip"]
    words += ["--calibrate", REAL]
    done = run("-m", "lichen.cli", "export", *words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made, files = unpack((tmp_path / "out.zip").read_bytes())
    assert made.base == digest(manifest.encode())
    assert json.loads(done.stdout)["parity"]["cases"] == 26
    told, theirs = unpack((served.folders[0] / "bundle.zip").read_bytes())
    assert files == theirs
    assert (made.parity, made.variants) == (told.parity, told.variants)


def as_toml() -> str:
    lines = [f"name = {json.dumps(TASK.name)}", f"labels = {json.dumps(list(TASK.labels))}"]
    for m in TASK.modalities:
        lines += [
            "[[modalities]]",
            f'name = "{m.name}"',
            f"channels = {m.channels}",
            f"rate_hz = {m.rate_hz}",
        ]
        lines += [f'unit = "{m.unit}"']
    lines += [
        "[network]",
        f"feature_dim = {TASK.network.feature_dim}",
        f"hidden_dim = {TASK.network.hidden_dim}",
    ]
    for name, encoder in TASK.network.encoders.items():
        lines += [f"[network.encoders.{name}]", f'kind = "{encoder.kind}"']
        lines += [f"width = {encoder.width}", f"depth = {encoder.depth}"]
    return "\n".join(lines)
