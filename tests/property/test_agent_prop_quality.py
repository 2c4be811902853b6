import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.windows.window_sets import windows_of_recording
from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Modality, Task
from tests.support.agent.data import motion, real_data, toy_task, turning

ACC = Task(
    name="t", labels=("a", "b"), modalities=(Modality(name="acc", channels=3, rate_hz=50, low=-40, high=40),)
)
IMU = Task(
    name="imu",
    labels=("a", "b"),
    modalities=(
        Modality(name="acc", channels=3, rate_hz=50, unit="g"),
        Modality(name="gyr", channels=3, rate_hz=50, unit="rad/s"),
    ),
)


def imu_quality(acc: np.ndarray, gyr: np.ndarray) -> np.ndarray:
    """``quality_BM`` of both sensors of one device."""
    t = np.arange(len(acc)) / 50
    streams = {name: Stream(t, x.astype(np.float32)) for name, x in (("acc", acc), ("gyr", gyr))}
    return windows_of_recording(IMU, Recording(streams)).quality_BM


def rotation(rng: np.random.Generator) -> np.ndarray:
    """How a device may be worn: any rotation."""
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return q * np.sign(np.linalg.det(q))


def quality(values: np.ndarray, t: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Start times and scores of the windows of one 50 Hz stream."""
    t = np.arange(len(values)) / 50 if t is None else t
    windows = windows_of_recording(ACC, Recording({"acc": Stream(t, values.astype(np.float32))}))
    return np.arange(len(windows)) * 1.28, windows.quality_BM[:, 0]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100))
def test_clean_motion_is_not_flagged_whatever_its_scale(seed, scale):
    values = np.clip(motion(60, 50, 3, seed).values * scale, -400, 400)
    task = toy_task(modalities=(Modality(name="acc", channels=3, rate_hz=50),))
    stream = Stream(np.arange(len(values)) / 50, values)
    assert (windows_of_recording(task, Recording({"acc": stream})).quality_BM >= 0.5).mean() > 0.95


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["stuck", "range", "noise"]),
    start=st.integers(1600, 2400),
)
def test_an_injected_fault_is_found_where_it_is(seed, kind, start):
    values = motion(80, 50, 3, seed).values.copy()
    part = slice(start, start + 400)
    if kind == "stuck":
        values[part] = values[start]
    elif kind == "range":
        values[part] += 60
    else:
        rng = np.random.default_rng(seed)
        values[part] += rng.normal(0, np.sqrt(values.var(0).mean() / 3), (400, 3)).astype(np.float32)
    begin, scores = quality(values)
    inside = (begin >= start / 50) & (begin + 2.56 <= (start + 400) / 50)
    outside = (begin + 2.56 <= start / 50) | (begin >= (start + 400) / 50)
    assert inside.sum() >= 3
    assert (scores[inside] < 0.5).all()
    assert (scores[outside] >= 0.5).mean() > 0.9


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_scores_stay_between_zero_and_one_on_any_finite_stream(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = rng.normal(size=(600, 3)) * 10.0 ** data.draw(st.integers(-20, 15))
    values[rng.random(600) < data.draw(st.floats(0, 1))] = data.draw(st.floats(-1e30, 1e30))
    _, scores = quality(values)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    assert (scores <= 1).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_sound_device_is_not_flagged_however_it_is_worn(seed):
    rng = np.random.default_rng(seed)
    acc, gyr = turning(60, 50, seed)
    worn = rotation(rng)
    assert (imu_quality(acc @ worn, gyr @ worn) >= 0.5).mean() > 0.95


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), gain=st.sampled_from([0.25, 0.5, 0.7]), start=st.integers(1600, 2400))
def test_an_accelerometer_that_has_lost_gain_is_found_where_it_is(seed, gain, start):
    acc, gyr = turning(80, 50, seed)
    acc[start : start + 400] *= gain
    scores_BM = imu_quality(acc, gyr)
    begin = np.arange(len(scores_BM)) * 1.28
    inside = (begin >= start / 50) & (begin + 2.56 <= (start + 400) / 50)
    outside = (begin + 2.56 <= start / 50) | (begin >= (start + 400) / 50)
    assert (scores_BM[inside, 0] < 0.5).all()
    assert (scores_BM[outside] >= 0.5).mean() > 0.9


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_scores_of_a_device_with_two_sensors_stay_between_zero_and_one(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    acc, gyr = (rng.normal(size=(600, 3)) * 10.0 ** data.draw(st.integers(-20, 17)) for _ in range(2))
    acc[rng.random(600) < data.draw(st.floats(0, 1))] = data.draw(st.floats(-1e17, 1e17))
    scores_BM = imu_quality(acc, gyr)
    assert np.isfinite(scores_BM).all()
    assert (scores_BM >= 0).all()
    assert (scores_BM <= 1).all()


@pytest.mark.data
def test_real_motion_noise_is_found_and_clean_motion_is_not():
    data = np.load(real_data("hapt_raw") / "hapt_raw.npz")
    found, wrong = [], []
    rng = np.random.default_rng(0)
    for r in (0, 12, 24):
        first, count = int(data["rec_start"][r]), int(data["rec_length"][r])
        values = data["acc"][first : first + count] * float(data["acc_lsb_g"])
        bad = (np.arange(count) / 50 // 60) % 2 == 1
        sd = np.sqrt(values.var(0).mean() / 10)
        begin, scores = quality(values + rng.normal(0, sd, values.shape) * bad[:, None])
        noisy = (begin // 60 % 2 == 1) & ((begin + 2.56) // 60 % 2 == 1)
        clean = (begin // 60 % 2 == 0) & ((begin + 2.56) // 60 % 2 == 0)
        found.append((scores[noisy] < 0.5).mean())
        wrong.append((scores[clean] < 0.5).mean())
    assert np.mean(found) > 0.95
    assert np.mean(wrong) < 0.02
