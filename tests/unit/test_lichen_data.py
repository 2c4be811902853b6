"""Recordings become the labelled windows that a coordinator judges versions on."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from coordinator.config import load_settings, load_task
from lichen.data_cli import app
from models import windowset
from protocol.errors import Misconfigured

TASK = """
name = "tiny"
method = "qqr"
labels = ["still", "moving"]
[[modalities]]
name = "acc"
channels = 3
rate_hz = 10
[window]
length_s = 2.0
stride_s = 1.0
"""


def recording(path: Path, labels: tuple[int, ...]) -> Path:
    """Ten seconds for each label."""
    t = np.arange(0, 10 * len(labels), 0.1)
    values = np.random.default_rng(0).standard_normal((len(t), 3)).astype(np.float32)
    starts = 10.0 * np.arange(len(labels))
    arrays = {"acc/t": t, "acc/values": values, "label/t": starts, "label/values": np.array(labels)}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def run(folder: Path, *files: Path) -> tuple[int, str, BaseException | None]:
    (folder / "task.toml").write_text(TASK)
    words = [*map(str, files), "--task", str(folder / "task.toml"), "--out", str(folder / "state/unseen.npz")]
    done = CliRunner().invoke(app, ["windows", *words])
    return done.exit_code, done.stdout, done.exception


def test_windows_of_several_recordings_are_counted_by_class_and_fit_the_coordinator(tmp_path: Path) -> None:
    files = recording(tmp_path / "a.npz", (0, 1, -1)), recording(tmp_path / "b.npz", (1,))
    code, said, error = run(tmp_path, *files)
    assert code == 0, error
    made = windowset.load(tmp_path / "state/unseen.npz")
    counts = np.bincount(made.y_B)
    assert (made.y_B >= 0).all()
    assert counts[1] > counts[0] > 0
    assert f"still {counts[0]}, moving {counts[1]}" in said
    config = tmp_path / "coordinator.toml"
    config.write_text(
        'fleet = "f"\nstate_dir = "s"\ntask = "task.toml"\n[evaluation]\ndata = "state/unseen.npz"\n'
    )
    assert load_task(load_settings(config))[0].name == "tiny"


def test_recordings_without_labels_are_refused_in_words(tmp_path: Path) -> None:
    _, _, error = run(tmp_path, recording(tmp_path / "a.npz", (-1, -1)))
    assert isinstance(error, Misconfigured)
    assert "a.npz: none of" in str(error)
    assert not (tmp_path / "state").exists()
