"""``lichen task check --data``: windows by class and modality, and the traps of a newcomer."""

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from lichen.commands.task import app
from models.data.streams.recording import Recording, Stream, write_npz

TASK = """
name = "t"
labels = ["still", "walk"]
[[modalities]]
name = "acc"
channels = 1
rate_hz = 10
[[modalities]]
name = "air"
channels = 1
rate_hz = 1
[window]
length_s = 4
stride_s = 2
"""


def checked(tmp_path: Path, label_t: list[float], label: list[int]) -> dict[str, object]:
    t = np.arange(1200) / 10
    streams = {"acc": Stream(t, np.random.default_rng(1).normal(size=(1200, 1)).astype(np.float32))}
    names = {"label": ("still", "walk")}
    recorded = Recording(streams, np.array(label_t), np.array(label), names=names)
    (tmp_path / "rec").mkdir()
    for name in ("a", "b"):
        write_npz(tmp_path / "rec" / f"{name}.npz", recorded)
    (tmp_path / "task.toml").write_text(TASK)
    words = ["check", str(tmp_path / "task.toml"), "--data", str(tmp_path / "rec"), "--format", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, "findings in data are warnings: a coordinator could start"
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_windows_are_counted_by_class_and_modality(tmp_path: Path) -> None:
    found = checked(tmp_path, [0.0, 60.0], [0, 1])
    data = found["data"]
    assert isinstance(data, dict)
    assert data["by_class"]["still"] > 50
    assert data["by_modality"]["acc"] == data["by_class"]
    assert data["by_modality"]["air"] == {"still": 0, "walk": 0}
    assert data["recordings"] == 2


def test_windows_longer_than_the_activities_and_one_class_alone_are_warned_of(tmp_path: Path) -> None:
    changes = [0.0, *np.arange(30.0, 120.0, 3.0).tolist()]
    found = checked(tmp_path, changes, [0, *[(at + 1) % 2 for at in range(len(changes) - 1)]])
    warnings = " ".join(map(str, found["warnings"]))  # type: ignore[call-overload]
    assert "hold more than one label" in warnings
    assert "are of class 'still'" in warnings
    assert "(1 more files alike)" in warnings
