"""Recordings become the labelled windows that a coordinator judges versions on."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from coordinator.config.coordinator import load_settings
from coordinator.task import load_task
from lichen_lab.simulation.data_cli import app
from models.data import window_set
from protocol.errors import Misconfigured
from tests.support.methods.labelled_files import write_csv
from tests.support.tasks import stream, task_toml

TASK = task_toml(
    ("still", "moving"),
    "tiny",
    method="qqr",
    streams={"acc": stream(3, 10)},
    window={"length_s": 2.0, "stride_s": 1.0},
)


def recording(path: Path, labels: tuple[int, ...]) -> Path:
    """Ten seconds for each label."""
    t = np.arange(0, 10 * len(labels), 0.1)
    values = np.random.default_rng(0).standard_normal((len(t), 3)).astype(np.float32)
    starts = 10.0 * np.arange(len(labels))
    arrays = {"acc/t": t, "acc/values": values, "label/t": starts, "label/values": np.array(labels)}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def run(folder: Path, *files: Path, more: str = "") -> tuple[int, str, BaseException | None]:
    (folder / "task.toml").write_text(TASK + more)
    words = [*map(str, files), "--task", str(folder / "task.toml"), "--out", str(folder / "state/unseen.npz")]
    done = CliRunner().invoke(app, ["windows", *words])
    return done.exit_code, done.stdout, done.exception


def test_a_task_on_graphs_has_no_windows_to_cut(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('name = "plant"\nmethod = "mmfed3_hide"\n[graph]\n')
    words = ["x.npz", "--task", str(tmp_path / "task.toml"), "--out", str(tmp_path / "o.npz")]
    done = CliRunner().invoke(app, ["windows", *words])
    assert isinstance(done.exception, Misconfigured)
    assert "lichen data windows needs windows of streams" in str(done.exception)


def test_windows_of_several_recordings_are_counted_by_class_and_fit_the_coordinator(tmp_path: Path) -> None:
    files = recording(tmp_path / "a.npz", (0, 1, -1)), recording(tmp_path / "b.npz", (1,))
    code, said, error = run(tmp_path, *files)
    assert code == 0, error
    made = window_set.load(tmp_path / "state/unseen.npz")
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


def test_tables_are_read_as_the_tasks_labelled_one_and_mix_with_recordings_that_have_context(
    tmp_path: Path,
) -> None:
    table = {"session": ["a"] * 40 + ["b"] * 40, "t": [at / 10 for at in range(40)] * 2}
    table |= {f"acc.{axis}": np.zeros(80).tolist() for axis in "xyz"}
    file = write_csv(tmp_path / "own.csv", {**table, "did": ["still"] * 40 + ["moving"] * 40})
    columns = 'label_column = "did"\nrecording_column = "session"\n'
    more = f'context_s = 4.0\n[labelled]\nfile = "own.csv"\n{columns}'
    code, said, error = run(tmp_path, file, recording(tmp_path / "a.npz", (1,)), more=more)
    assert code == 0, error
    assert "still 3, moving 12" in said
    assert window_set.load(tmp_path / "state/unseen.npz").context is None
