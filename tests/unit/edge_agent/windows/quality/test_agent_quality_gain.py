"""Gains against gravity, and of a gyroscope against the accelerometer beside it."""

import numpy as np
import pytest

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality.accelerometer import GRAVITY, AccelerometerGain
from edge_agent.windows.quality.gyroscope import gains, partner
from edge_agent.windows.quality.meter import REASONS
from edge_agent.windows.window_sets import scored_windows
from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Modality, Task
from tests.support.agent.data import turning

GAIN = REASONS.index("wrong gain")
ACC = Modality(name="acc", channels=3, rate_hz=50, unit="g")
GYR = Modality(name="gyr", channels=3, rate_hz=50, unit="rad/s")
IMU = Task(name="imu", labels=("a", "b"), modalities=(ACC, GYR))


def gravity(x_BCT: np.ndarray, unit: str = "g", minimum: int = 4) -> np.ndarray:
    judge = AccelerometerGain(unit, x_BCT.shape[1], minimum)
    return judge.penalty(x_BCT.astype(np.float32), np.ones(x_BCT[:, 0].shape, bool), 0.15, 0.5)


def resting(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    down = rng.normal(size=(count, 3, 1))
    down /= np.linalg.norm(down, axis=1, keepdims=True)
    return down + rng.normal(0, 0.02, (count, 3, 128))


@pytest.mark.parametrize("unit", sorted(GRAVITY))
@pytest.mark.parametrize(("gain", "found"), [(0.5, True), (0.95, False), (1.08, False), (1.3, True)])
def test_a_resting_accelerometer_measures_gravity_in_its_unit(unit, gain, found):
    windows = np.concatenate([resting(8), gain * resting(8)]) * GRAVITY[unit]
    penalty = gravity(windows, unit)
    assert (penalty[:8] == 0).all()
    assert ((penalty[8:] >= 0.55) == found).all()


def test_a_gain_too_low_is_found_only_once_gravity_was_seen():
    assert (gravity(0.5 * resting(20)) == 0).all()


def test_an_accelerometer_without_gravity_is_not_judged():
    rng = np.random.default_rng(0)
    assert (gravity(rng.normal(0, 0.3, (50, 3, 128))) == 0).all()


def test_what_is_swung_is_pulled_outwards_and_is_not_wrong():
    angle = np.deg2rad(60) * np.cos(2 * np.pi * 0.8 * np.arange(128) / 50)
    string = 3 * np.cos(angle) - 2 * np.cos(np.deg2rad(60))  # a pendulum: all force is along the string
    window = np.stack([0 * angle, 0 * angle, string])[None]
    assert np.linalg.norm(window.mean(axis=2)) > 1.2
    assert gravity(window)[0] == 0


@pytest.mark.parametrize(("unit", "channels"), [("g", 2), ("g", 1), ("Pa", 3), ("rad/s", 3)])
def test_other_modalities_are_not_judged(unit, channels):
    assert (gravity(9 * np.ones((20, channels, 128)), unit) == 0).all()


def test_nothing_covered_says_nothing():
    judge = AccelerometerGain("g", 3, 4)
    x_BCT = 5 * np.ones((3, 3, 128), np.float32)
    assert (judge.penalty(x_BCT, np.zeros((3, 128), bool), 0.15, 0.5) == 0).all()


def windows_of(x_TC: np.ndarray) -> np.ndarray:
    count = len(x_TC) // 128
    return x_TC[: count * 128].reshape(count, 128, -1).transpose(0, 2, 1)


@pytest.mark.parametrize("gain", [0.4, 1.0, 2.5])
def test_the_gain_of_a_gyroscope_is_what_it_is_whatever_the_accelerometers(gain):
    acc, gyr = turning(60, 50)
    found, says = gains(3 * windows_of(acc), gain * windows_of(gyr), 50)
    assert says.mean() > 0.5
    assert np.median(found[says > 0]) == pytest.approx(gain, rel=0.1)


def test_sensors_at_rest_say_nothing_and_those_with_other_axes_say_so():
    acc, gyr = turning(60, 50)
    assert (gains(windows_of(acc), windows_of(gyr), 50)[1] >= 0).all()
    opposed = gains(windows_of(acc), -windows_of(gyr), 50)[1]
    assert (opposed <= 0).all()
    assert (opposed < 0).any()
    still = np.random.default_rng(0).normal(0, 0.01, (20, 3, 128)) + np.array([0, 0, 1])[:, None]
    assert not gains(still, 0.01 * still, 50)[1].any()
    assert not gains(windows_of(acc)[:, :, :20], windows_of(gyr)[:, :, :20], 50)[1].any(), "too short"


@pytest.mark.parametrize("axes", [[1, 0, 2], [2, 1, 0], [1, 2, 0]])
def test_sensors_with_other_axes_are_not_blamed_for_their_gain(axes):
    acc, gyr = turning(200, 50)
    assert found_gain(acc, gyr[:, axes]).mean() < 0.05


@pytest.mark.parametrize(
    ("modalities", "beside"),
    [
        ((ACC, GYR), "acc"),
        ((GYR, ACC), "acc"),
        ((GYR,), None),
        ((ACC.model_copy(update={"rate_hz": 25.0}), GYR), None),
        ((ACC.model_copy(update={"channels": 2}), GYR), None),
        ((ACC, GYR.model_copy(update={"unit": "1"})), None),
        ((ACC, GYR.model_copy(update={"unit": " Deg/s"})), "acc"),
    ],
)
def test_a_gyroscope_is_compared_with_an_accelerometer_on_its_grid(modalities, beside):
    task = IMU.model_copy(update={"modalities": modalities})
    found = partner(task, task.modality("gyr"))
    assert (found and found.name) == beside


def found_gain(acc: np.ndarray, gyr: np.ndarray, task: Task = IMU) -> np.ndarray:
    t = np.arange(len(acc)) / 50
    streams = {"acc": Stream(t, acc.astype(np.float32)), "gyr": Stream(t, gyr.astype(np.float32))}
    return np.concatenate([q.found_BMR[:, :, GAIN] for _, q in scored_windows(task, Recording(streams))])


def test_a_gyroscope_with_a_gain_that_has_changed_is_found_and_the_accelerometer_is_not_blamed():
    acc, gyr = turning(160, 50)
    gyr[4000:] *= 2.0
    found_BM = found_gain(acc, gyr)
    assert not found_BM[:60].any()
    assert found_BM[80:, 1].mean() > 0.8
    assert not found_BM[:, 0].any()


def test_degrees_per_second_are_read_as_such():
    acc, gyr = turning(100, 50)
    degrees = IMU.model_copy(update={"modalities": (ACC, GYR.model_copy(update={"unit": "deg/s"}))})
    assert not found_gain(acc, np.rad2deg(gyr), degrees).any()
    assert found_gain(acc, np.rad2deg(gyr))[20:, 1].mean() > 0.8


def test_a_clipped_accelerometer_does_not_put_the_blame_on_the_gyroscope():
    acc, gyr = turning(160, 50)
    acc[4000:] = np.clip(acc[4000:], -0.4, 0.4)
    found_BM = found_gain(acc, gyr)
    assert found_BM[80:, 0].mean() > 0.8
    assert not found_BM[:, 1].any()


def test_a_missing_accelerometer_leaves_the_gyroscope_unjudged():
    _, gyr = turning(60, 50)
    t = np.arange(len(gyr)) / 50
    recording = Recording({"gyr": Stream(t, 4 * gyr.astype(np.float32))})
    assert not np.concatenate([q.found_BMR[..., GAIN] for _, q in scored_windows(IMU, recording)]).any()


def test_thresholds_are_settings():
    acc, gyr = turning(60, 50)
    t = np.arange(len(acc)) / 50
    streams = {"acc": Stream(t, 1.3 * acc.astype(np.float32)), "gyr": Stream(t, gyr.astype(np.float32))}
    loose = QualitySettings(gain_tolerance=0.5)
    pairs = list(scored_windows(IMU, Recording(streams), loose))
    assert not np.concatenate([q.found_BMR[:, 0, GAIN] for _, q in pairs]).any()
