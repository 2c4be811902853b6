"""Images, vectors and texts in windows: the newest frame, and no more of them in memory than windows need."""

from typing import Any

import numpy as np
import pytest

from models.data.streams.batches import SampleBatch
from models.data.streams.tracks.frames import FrameTrack
from models.data.streams.windows import Windower, Windows
from protocol.tasks.task import Modality, Task, Window
from tests.support.tasks import small_task

IMU = Modality(name="imu", channels=3, rate_hz=50)
SOUND = Modality(name="sound", kind="sound", channels=1, rate_hz=16_000)


def camera(size: int = 4, rate_hz: float = 5, channels: int = 1) -> Modality:
    return Modality(name="camera", kind="image", channels=channels, height=size, width=size, rate_hz=rate_hz)


def task(*modalities: Modality, length_s: float = 2.0, stride_s: float = 1.0) -> Task:
    return small_task(modalities, window=Window(length_s=length_s, stride_s=stride_s))


def frames(modality: Modality, t: list[float] | np.ndarray) -> SampleBatch:
    """Frames whose first value is their time, and whose others count up."""
    times = np.asarray(t, np.float64)
    values = np.tile(np.arange(modality.sample_values, dtype=np.float32), (len(times), 1))
    values[:, 0] = times
    return SampleBatch(modality.name, times, values)


def motion(begin: float, end: float) -> SampleBatch:
    t = np.arange(round(begin * 50), round(end * 50)) / 50
    return SampleBatch("imu", t, np.repeat(t[:, None], 3, 1).astype(np.float32))


def drain(windower: Windower, now: float = 0.0) -> list[Windows]:
    found = []
    while (windows := windower.poll(now)) is not None:
        found.append(windows)
    return found


def flushed(windower: Windower) -> list[Windows]:
    found = []
    while (windows := windower.flush()) is not None:
        found.append(windows)
    return found


def by_start(found: list[Windows]) -> dict[float, float]:
    """By start of a window, the time of its frame; windows without a frame are left out."""
    column = 0
    return {
        round(float(start), 6): round(float(windows.x["camera"][b, 0, 0]), 6)
        for windows in found
        for b, start in enumerate(windows.start_B)
        if windows.present_BM[b, column]
    }


def test_a_window_holds_the_newest_frame_in_it_as_it_came() -> None:
    modality = camera(channels=3)
    windower = Windower(task(modality), ("camera",))
    windower.feed(frames(modality, [0.1, 0.9, 1.9, 2.0, 3.2, 7.5]), 0.0)
    found = flushed(windower)
    assert by_start(found) == {0.0: 1.9, 1.0: 2.0, 2.0: 3.2, 3.0: 3.2, 6.0: 7.5, 7.0: 7.5}, (
        "a frame at the end of a window is in the next one; a window without a frame is none"
    )
    x_BCT = found[0].x["camera"]
    assert x_BCT.shape[1:] == (3, 16)
    np.testing.assert_array_equal(x_BCT[0].ravel()[1:], np.arange(1, 48))
    assert found[0].covered["camera"].all()


def test_no_window_at_the_end_of_a_recording_has_an_image_alone_because_it_has_hardly_begun() -> None:
    modality = camera()
    windower = Windower(task(modality, IMU))
    windower.feed(motion(0, 8), 0.0)
    windower.feed(frames(modality, np.arange(40) / 5), 0.0)
    found = flushed(windower)
    assert [s for w in found for s in w.start_B] == [float(s) for s in range(7)]
    assert all(w.present_BM.all() for w in found)


def test_images_one_a_window_are_all_in_a_window() -> None:
    modality = camera(rate_hz=1)
    windower = Windower(task(modality, length_s=1.0, stride_s=1.0))
    windower.feed(frames(modality, np.arange(20.0)), 0.0)
    assert by_start(flushed(windower)) == {float(k): float(k) for k in range(20)}


def test_frames_in_any_order_and_in_parts_give_the_same_windows() -> None:
    modality = camera()
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 30, 300))
    whole, parts = Windower(task(modality)), Windower(task(modality))
    whole.feed(frames(modality, t), 0.0)
    for part in np.array_split(t, 40):
        parts.feed(frames(modality, rng.permutation(np.concatenate([part, part[:2]]))), 0.0)
    expected = {float(s): t[(t >= s) & (t < s + 2)].max() for s in range(29)}
    for windower in (whole, parts):
        found = by_start(flushed(windower))
        assert {s: found[s] for s in expected} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("length_s", "stride_s"), [(2.56, 1.28), (2.0, 0.1), (0.3, 1.0), (0.1, 0.1), (1.1, 0.7)]
)
def test_dropping_frames_changes_no_window(length_s: Any, stride_s: Any) -> None:
    """A track that drops frames as they come, against one look at all of them."""
    modality = camera(2)
    rng = np.random.default_rng(1)
    t = np.unique(np.concatenate([rng.uniform(0, 20, 200), np.arange(200) * stride_s / 2, [0.3, 0.1 + 0.2]]))
    track = FrameTrack(modality, Window(length_s=length_s, stride_s=stride_s))
    for one in t:
        track.add(np.array([one]), frames(modality, [one]).values, one, 0.0)
    start = np.arange(int(20 / stride_s)) * stride_s
    x_BCT, covered = track.newest(start)
    for b, s in enumerate(start):
        inside = t[(t >= s) & (t < s + length_s)]
        assert covered[b].all() == bool(len(inside)) == covered[b].any()
        assert x_BCT[b, 0, 0] == np.float32(inside.max() if len(inside) else 0.0)


def test_a_camera_of_30_hz_holds_a_frame_for_each_open_window_and_no_more() -> None:
    modality = camera(96, 30, 3)
    windower = Windower(task(IMU, modality, length_s=2.56, stride_s=1.28))
    track = windower._tracks["camera"]
    assert isinstance(track, FrameTrack)
    for second in range(30):  # the other sensor is dead, and is not given up yet
        windower.feed(frames(modality, second + np.arange(30) / 30), 0.0)
        assert drain(windower, 0.0) == []
    assert len(track.times()) <= 30 / 1.28 + 2, "900 frames came"
    assert all(row.base is None for row in track._rows), "no row holds its batch in memory"


def test_large_frames_wait_for_nobody_beyond_64_mb() -> None:
    modality = Modality(name="camera", kind="image", channels=3, height=480, width=640, rate_hz=1)
    windower = Windower(task(IMU, modality, length_s=2.0, stride_s=1.0))
    track = windower._tracks["camera"]
    assert isinstance(track, FrameTrack)
    assert track.patience_s == pytest.approx(64 * 2**20 / (4 * 3 * 480 * 640) - 2)
    for second in range(40):
        windower.feed(frames(modality, [second + 0.5]), 0.0)
        drain(windower, 0.0)
        assert len(track.times()) * 4 * modality.sample_values <= 64 * 2**20


def test_frames_and_motion_give_the_same_windows_at_every_pace() -> None:
    modality = camera()
    grid = task(modality, IMU)
    found = []
    for step in (0.2, 1.0, 7.0):
        windower, got = Windower(grid), []
        for begin in np.arange(0, 21, step):
            t = np.arange(0.05, 20, 0.2)  # 5 Hz
            windower.feed(motion(begin, min(20.0, begin + step)), begin)
            windower.feed(frames(modality, t[(t >= begin) & (t < begin + step)]), begin)
            got += drain(windower, begin)
        found.append(by_start([*got, *flushed(windower)]))
    assert found[0] == found[1] == found[2]
    assert found[0][0.0] == 1.85


def test_a_rare_frame_delays_no_window() -> None:
    modality = Modality(name="camera", kind="vector", channels=4, rate_hz=0.01)
    windower = Windower(task(modality, IMU), lateness_s=2.0)
    windower.feed(frames(modality, [0.5]), 0.0)
    closed = []
    for second in range(10):
        windower.feed(motion(second, second + 1), float(second))
        closed += drain(windower, second + 0.5)
    assert len([s for w in closed for s in w.start_B]) >= 7
    assert by_start(closed) == {0.0: 0.5}


def test_a_late_frame_is_counted_and_one_of_an_open_window_is_taken() -> None:
    modality = camera()
    windower = Windower(task(modality), ("camera",))
    windower.feed(frames(modality, [0.1, 5.0]), 0.0)
    assert by_start(drain(windower)) == {0.0: 0.1}
    for t in (0.2, 6.9, 6.5, 8.5):
        windower.feed(frames(modality, [t]), 0.0)
    assert windower.counters.late == 1
    assert by_start(drain(windower)) == {4.0: 5.0, 5.0: 6.9, 6.0: 6.9}


def test_a_camera_whose_clock_is_set_back_begins_anew() -> None:
    modality = camera()
    windower = Windower(task(modality), ("camera",))
    windower.feed(frames(modality, [1000.5, 1001.5]), 0.0)
    windower.feed(frames(modality, [3.5, 8.0]), 0.0)
    found = by_start(drain(windower))
    assert windower.counters.clock_steps == 1
    assert {s: at for s, at in found.items() if s < 100} == {3.0: 3.5}
    assert max(found.values()) == 1001.5, "what was open before the step is closed, not lost"


def test_a_frame_of_another_size_and_one_that_is_not_finite_are_counted() -> None:
    modality = camera()
    windower = Windower(task(modality), ("camera",))
    windower.feed(frames(camera(5), [0.1]), 0.0)
    bad = frames(modality, [0.2, 0.3])
    bad.values[0, 5] = np.nan
    windower.feed(bad, 0.0)
    assert (windower.counters.ignored, windower.counters.not_finite) == (1, 1)
    assert by_start(flushed(windower)) == {0.0: 0.3}


def test_an_image_sound_and_motion_come_together_in_a_window() -> None:
    modality = camera()
    windower = Windower(task(modality, SOUND, IMU))
    t = np.arange(16_000 * 5) / 16_000
    tone = np.round(20_000 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
    windower.feed(SampleBatch("sound", t[64_000:], tone[64_000:, None]), 0.0)
    for begin in range(4):
        part = slice(16_000 * begin, 16_000 * (begin + 1))
        windower.feed(SampleBatch("sound", t[part], tone[part, None]), 0.0)
        windower.feed(motion(begin, begin + 1), 0.0)
        windower.feed(frames(modality, begin + np.arange(5) / 5), 0.0)
    assert [s for w in drain(windower) for s in w.start_B] == [0.0, 1.0], "a frame at 3.9 may still come"
    windower.feed(frames(modality, [4.0]), 0.0)
    (found,) = drain(windower)
    assert found.present_BM.all()
    assert found.start_B.tolist() == [2.0]
    np.testing.assert_array_equal(found.x["sound"][0, 0], tone[32_000:64_000])


def test_a_context_of_streams_leaves_frames_as_they_are() -> None:
    modality = camera()
    grid = small_task((modality, IMU), window=Window(length_s=2.0, stride_s=1.0, context_s=5.0))
    windower = Windower(grid)
    windower.feed(motion(0, 10), 0.0)
    windower.feed(frames(modality, np.arange(50) / 5), 0.0)
    (found,) = drain(windower)
    assert found.context is not None
    assert found.context.x["imu"].shape[-1] == 250
    np.testing.assert_array_equal(found.context.x["camera"], found.x["camera"])
    assert (found.context.points_BM[:, 0] == 16).all()
