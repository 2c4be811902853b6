"""Labelled files as editors, exports and disks leave them: windows come out, or words."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.data import labelled_windows as labelled
from models.data.streams.recording import write_npz
from protocol.errors import Misconfigured
from tests.support.agent.data import toy_recording, toy_task
from tests.support.methods.labelled_files import cells, task_of, write_csv

CELL = st.sampled_from(["", "slow", "fast", " fast ", "1", "2.0", "-1", "nan", "1e400", "ann", '"', "é"])


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5), CELL), max_size=8),
    st.sampled_from([None, "who"]),
)
def test_a_table_with_odd_cells_gives_whole_windows_of_known_classes_or_words(
    odd: list[tuple[int, int, str]], who: str | None
) -> None:
    columns = {**cells(("slow", "fast"), 3.0), "who": ["ann"] * 60}
    names = list(columns)
    for row, column, cell in odd:
        columns[names[column]][row % 60] = cell
    with TemporaryDirectory(prefix="lichen-labelled-") as folder:
        write_csv(Path(folder) / "own.csv", columns)
        task = task_of(**({"recording_column": who} if who else {}))
        try:
            windows = labelled.load(task, Path(folder))
        except Misconfigured as error:
            assert "own.csv" in str(error)  # noqa: PT017 - both ends are sound; this one names the file
            return
    assert len(windows)
    assert set(windows.y_B) <= {0, 1, 2}
    assert windows.present_BM.any(axis=1).all()
    assert all(np.isfinite(x_BCT).all() for x_BCT in windows.x.values())


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_a_damaged_file_is_told_from_a_whole_one_by_words_and_by_nothing_else(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"own{suffix}"
    if suffix == ".npz":
        write_npz(path, toy_recording(20.0, 5.0))
        task = toy_task(labelled=task_of(path.name).labelled)
    else:
        write_csv(tmp_path / "own.csv", cells(("slow", "fast"), 3.0))
        task = task_of(path.name)
    if suffix == ".parquet":
        csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(csv.read_csv(tmp_path / "own.csv"), path)
    whole, rng = path.read_bytes(), random.Random(0)
    assert len(labelled.load(task, tmp_path))
    for _ in range(60):
        data = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data) or 1) : 0] = bytes([rng.randrange(256)])
        path.write_bytes(bytes(data))
        try:
            labelled.load(task, tmp_path)
        except Misconfigured as error:
            assert "own" in str(error)  # noqa: PT017 - as above
