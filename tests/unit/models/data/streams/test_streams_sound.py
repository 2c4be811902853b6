"""Sound in windows: samples as they came, whatever the phase and the clock of the microphone."""

from typing import Any

import numpy as np
import pytest

from models.data.streams.batches import SampleBatch
from models.data.streams.windows import Windower, Windows
from protocol.tasks.task import Modality, Window
from tests.support.tasks import small_task

RATE = 16_000
SOUND = Modality(name="sound", kind="sound", channels=1, rate_hz=RATE)
TASK = small_task((SOUND,), window=Window(length_s=1.0, stride_s=0.5))
X = np.random.default_rng(0).integers(-32768, 32768, 4 * RATE).astype(np.float32)


def windows(t: np.ndarray, values: np.ndarray = X, parts: int = 17) -> Windows:
    """All windows of the sound, fed in parts, closed as soon as they may."""
    windower, found = Windower(TASK), []
    for part in np.array_split(np.arange(len(t)), parts):
        windower.feed(SampleBatch("sound", t[part], values[part, None]), 0.0)
        while (closed := windower.poll(0.0)) is not None:
            found.append(closed)
    while (closed := windower.flush()) is not None:
        found.append(closed)
    return Windows(
        np.concatenate([w.start_B for w in found]),
        {"sound": np.concatenate([w.x["sound"] for w in found])},
        {"sound": np.concatenate([w.covered["sound"] for w in found])},
        np.concatenate([w.present_BM for w in found]),
        np.concatenate([w.y_B for w in found]),
    )


CLOCKS = {
    "on the grid": lambda n: n / RATE,
    "half a sample beside it": lambda n: (n + 0.5) / RATE,
    "unix time": lambda n: 1.7e9 + n / RATE,
    "too fast by 100 ppm": lambda n: n / (RATE * 1.0001),
    "too slow by 100 ppm": lambda n: n / (RATE * 0.9999),
    "wavering": lambda n: n / RATE + 0.002 * np.sin(9 * n / RATE),
}


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS.keys())
def test_a_window_is_a_stretch_of_the_sound_within_5_ms_of_its_place(clock: Any) -> None:
    t = clock(np.arange(len(X), dtype=np.float64))
    found = windows(t)
    full = found.present_BM[:, 0] & found.covered["sound"].all(axis=1)
    assert full.sum() >= 5
    exact = 0
    for start, x_T in zip(found.start_B[full], found.x["sound"][full, 0], strict=True):
        near = int(np.searchsorted(t, start))
        places = [at for at in range(max(0, near - 90), near + 90) if X[at] == x_T[0]]
        exact += any(np.array_equal(X[at : at + RATE], x_T) for at in places)
    assert exact >= full.sum() - 2, "the first and the last window may reach over an end"


def test_the_parts_in_which_it_comes_change_nothing() -> None:
    t = (np.arange(len(X)) + 0.3) / (RATE * 1.0001)
    one, many = windows(t, parts=1), windows(t, parts=101)
    np.testing.assert_array_equal(one.start_B, many.start_B)
    np.testing.assert_array_equal(one.x["sound"], many.x["sound"])


def test_a_lost_block_is_a_gap_and_is_not_joined() -> None:
    t = np.arange(len(X)) / RATE
    there = (t < 1.6) | (t >= 1.8)
    found = windows(t[there], X[there])
    hole = found.covered["sound"][found.start_B == 1.5][0]
    assert 0.78 < hole.mean() < 0.82
    few = (t < 1.6) | (t >= 1.65)
    found = windows(t[few], X[few])
    x_T = found.x["sound"][found.start_B == 1.0][0, 0]
    np.testing.assert_array_equal(x_T[: int(0.59 * RATE)], X[RATE : int(1.59 * RATE)])
    np.testing.assert_array_equal(x_T[int(0.66 * RATE) :], X[int(1.66 * RATE) : 2 * RATE])


def test_a_slow_sound_of_another_rate_is_put_onto_the_grid() -> None:
    """8 kHz where the task says 16."""
    t = np.arange(2 * RATE) / 8000
    found = windows(t, t.astype(np.float32))
    np.testing.assert_allclose(found.x["sound"][1, 0], 0.5 + np.arange(RATE) / RATE, atol=1e-4)
