"""Windows of images, sound, vectors and texts on disk: bit for bit, in few bytes, in a store of their own."""

from pathlib import Path

import numpy as np
import pytest

from edge_agent.windows.rows import as_set, rows_of, whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import grid_digest
from edge_agent.windows.window_sets import windows_of_recording
from models.contract import WindowSet
from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.data import toy_task
from tests.support.tasks import small_task

IMAGE = Modality(name="camera", kind="image", channels=3, height=8, width=6, rate_hz=5)
TASK = small_task(
    (
        Modality(name="imu", channels=2, rate_hz=10),
        IMAGE,
        Modality(name="sound", kind="sound", channels=1, rate_hz=100),
        Modality(name="vector", kind="vector", channels=5, rate_hz=1),
        Modality(name="words", kind="text", channels=32, rate_hz=1),
    ),
    window=Window(length_s=2.0, stride_s=1.0),
)


def windows(count: int = 12) -> WindowSet:
    rng = np.random.default_rng(0)
    x = {
        "imu": rng.normal(size=(count, 2, 20)),
        "camera": rng.integers(0, 256, (count, 3, 48)),
        "sound": rng.integers(-32768, 32768, (count, 1, 200)) / 32768,
        "vector": rng.normal(size=(count, 5, 1)),
        "words": rng.integers(0, 3, (count, 32, 1)),
    }
    present = rng.random((count, 5)) < 0.7
    present[0] = True
    values = {
        name: np.where(present[:, m, None, None], x_BCT, 0).astype(np.float32)
        for m, (name, x_BCT) in enumerate(x.items())
    }
    return WindowSet(values, present, np.ones((count, 5), np.float32), np.arange(count) % 3)


def test_every_kind_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store, given = WindowStore(tmp_path, TASK, 10_000_000), windows()
    store.add(given)
    store.commit()
    found = store.recent(100)
    for name, x_BCT in given.x.items():
        assert found.x[name].tobytes() == x_BCT.tobytes(), name
    np.testing.assert_array_equal(found.present_BM, given.present_BM)
    store.close()


def test_a_pixel_takes_a_byte_and_a_sound_of_16_bits_two() -> None:
    (row, *_) = rows_of(TASK, windows())
    assert len(row.x) == 4 * 40 + (1 + 144) + (1 + 2 * 200) + (1 + 4 * 5) + (1 + 32)
    assert whole_bytes(TASK) == 4 * (40 + 144 + 200 + 5 + 32) + 4, "at most, and in memory"


def test_the_budget_counts_the_bytes_on_disk(tmp_path: Path) -> None:
    grid = small_task((IMAGE,), window=Window(length_s=2.0, stride_s=1.0))
    rng = np.random.default_rng(0)
    count = 400
    pixels = rng.integers(0, 256, (count, 3, 48)).astype(np.float32)
    ones = np.ones((count, 1), np.bool_)
    given = WindowSet({"camera": pixels}, ones, ones.astype(np.float32), np.zeros(count, np.int64))
    store = WindowStore(tmp_path, grid, 200 * (4 * 144))
    store.add(given)
    store.commit()
    assert store.snapshot().total == count, "as float32, half of them would not fit"
    store.close()


def test_a_damaged_row_is_an_error_and_never_another_picture() -> None:
    (row, *_) = rows_of(TASK, windows())
    broken = bytearray(row.x)
    broken[160] = 77
    with pytest.raises(ValueError, match="type 77"):
        as_set(TASK, [type(row)(row.y, row.present, row.quality, bytes(broken))])


def test_stores_of_streams_keep_their_names_and_other_kinds_have_their_own() -> None:
    assert grid_digest(toy_task()) == "0871b96a12e0", "every device's store has this name"

    def digest(**changes: object) -> str:
        shape = {"name": "camera", "kind": "image", "channels": 3, "height": 8, "width": 6, "rate_hz": 5}
        modality = Modality.model_validate(shape | changes)
        return grid_digest(Task(name="t", labels=("a", "b"), modalities=(modality,)))

    kinds = [
        digest(),
        digest(height=6, width=8),
        digest(kind="vector", height=None, width=None),
        digest(kind="sound", height=None, width=None),
        digest(kind="stream", height=None, width=None),
    ]
    assert len(set(kinds)) == len(kinds)
    assert digest(offset=3.0, low=0.0) == digest()


def test_the_stream_before_a_window_is_stored_likewise(tmp_path: Path) -> None:
    grid = small_task(
        (TASK.modality("imu"), IMAGE, TASK.modality("sound")),
        window=Window(length_s=2.0, stride_s=1.0, context_s=5.0),
    )
    rng = np.random.default_rng(0)
    recording = Recording(
        {
            "imu": Stream(np.arange(300) / 10, rng.normal(size=(300, 2)).astype(np.float32)),
            "camera": Stream(np.arange(150) / 5, rng.integers(0, 256, (150, 144)).astype(np.float32)),
            "sound": Stream(np.arange(3000) / 100, rng.integers(-999, 999, (3000, 1)).astype(np.float32)),
        }
    )
    given = windows_of_recording(grid, recording)
    assert given.context is not None
    assert given.context.points_BM[-1].tolist() == [50, 48, 500]
    store = WindowStore(tmp_path, grid, 10_000_000)
    store.add(given)
    store.commit()
    found = store.recent(100, labelled=False)
    assert found.context is not None
    for name, x_BCL in given.context.x.items():
        assert found.context.x[name].tobytes() == x_BCL.tobytes(), name
    np.testing.assert_array_equal(found.context.points_BM, given.context.points_BM)
    store.close()
    row = rows_of(grid, given)[-1]
    assert len(row.context or b"") == 4 * 3 + 4 * 2 * 30 + 1 + 2 * 300
