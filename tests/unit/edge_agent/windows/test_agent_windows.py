import numpy as np
import pytest

from edge_agent.windows.window_sets import windows_of_recording
from models.data.streams.batches import LabelBatch, SampleBatch
from models.data.streams.recording import Recording, Stream
from models.data.streams.windows import Windower, Windows
from protocol.errors import Misconfigured
from tests.support.agent.data import motion, toy_recording, toy_task


def drain(windower: Windower, now: float) -> list[Windows]:
    found = []
    while (windows := windower.poll(now)) is not None:
        found.append(windows)
    return found


def starts(found: list[Windows]) -> list[float]:
    return [round(float(s), 6) for w in found for s in w.start_B]


def samples(name: str, begin: float, end: float, rate: float, channels: int) -> SampleBatch:
    t = np.arange(round(begin * rate), round(end * rate)) / rate
    return SampleBatch(name, t, np.repeat(t[:, None], channels, 1).astype(np.float32))


def test_values_are_interpolated_onto_the_grid_by_timestamps():
    task = toy_task()
    t = np.sort(np.random.default_rng(0).uniform(0, 10, 900))
    recording = Recording({"acc": Stream(t, np.stack([3 * t, -t, t + 1], 1).astype(np.float32))})
    windows = windows_of_recording(task, recording)
    grid = 1.28 + np.arange(128) / 50
    np.testing.assert_allclose(windows.x["acc"][1, 0], 3 * grid, atol=1e-4)
    np.testing.assert_allclose(windows.x["acc"][1, 2], grid + 1, atol=1e-4)
    assert not windows.present_BM[:, 1].any()
    assert (windows.x["gyr"] == 0).all()


def test_a_label_counts_only_when_it_holds_for_the_whole_window():
    task = toy_task()
    recording = toy_recording(60)
    windows = windows_of_recording(task, recording)
    begin = np.arange(len(windows)) * 1.28
    for b, y in zip(begin, windows.y_B, strict=True):
        inside = b > 40 or int(b // 20) == int((b + 2.56 - 1e-6) // 20)
        assert y == (int(b // 20) % 3 if inside else -1)


def test_a_class_the_task_does_not_have_is_no_label():
    task = toy_task()
    recording = toy_recording(20)
    odd = Recording(recording.streams, np.array([0.0]), np.array([7]))
    assert set(windows_of_recording(task, odd).y_B) == {-1}


def test_a_dead_sensor_gives_masked_windows_and_blocks_nobody():
    windower = Windower(toy_task(), lateness_s=2.0)
    windower.feed(samples("acc", 0, 10, 50, 3), 0.0)
    windower.feed(samples("gyr", 0, 4, 25, 2), 0.0)
    first = drain(windower, 1.0)
    assert starts(first) == [0.0, 1.28]
    windower.feed(samples("acc", 10, 20, 50, 3), 1.5)
    assert drain(windower, 1.6) == []
    late = drain(windower, 2.1)
    assert starts(late)[-1] == pytest.approx(16.64)
    present = np.concatenate([w.present_BM for w in late])
    assert present[:, 0].all()
    assert not present[1:, 1].any()
    windower.feed(samples("acc", 20, 24, 50, 3), 2.2)
    assert drain(windower, 2.3), "a sensor known to be dead is not waited for again"


def test_it_comes_back():
    windower = Windower(toy_task(), lateness_s=2.0)
    windower.feed(samples("acc", 0, 10, 50, 3), 0.0)
    drain(windower, 3.0)
    windower.feed(samples("acc", 10, 20, 50, 3), 10.0)
    windower.feed(samples("gyr", 10, 20, 25, 2), 10.0)
    windows = drain(windower, 10.0)
    assert windows[-1].present_BM[-1].all()


def test_out_of_order_and_double_samples_change_nothing():
    task, recording = toy_task(), toy_recording(30)
    stream = recording.streams["acc"]
    rng = np.random.default_rng(1)
    plain, shaken = Windower(task, ("acc",)), Windower(task, ("acc",))
    plain.feed(SampleBatch("acc", stream.t, stream.values), 0.0)
    for part in np.array_split(np.arange(len(stream.t)), 12):
        mixed = np.concatenate([rng.permutation(part), part[:20]])
        shaken.feed(SampleBatch("acc", stream.t[mixed], stream.values[mixed]), 0.0)
    a, b = drain(plain, 0.0), drain(shaken, 0.0)
    np.testing.assert_array_equal(
        np.concatenate([w.x["acc"] for w in a]), np.concatenate([w.x["acc"] for w in b])
    )


def test_nan_samples_are_gaps_and_are_counted():
    stream = motion(20, 50, 3)
    values = stream.values.copy()
    values[200:400] = np.nan
    values[450] = np.nan
    windower = Windower(toy_task(), ("acc",))
    windower.feed(SampleBatch("acc", stream.t, values), 0.0)
    windows = drain(windower, 0.0)
    covered = np.concatenate([w.covered["acc"] for w in windows])
    assert windower.counters.not_finite == 201
    x = np.concatenate([w.x["acc"] for w in windows])
    assert np.isfinite(x).all()
    found = starts(windows)
    assert found[:4] == [0.0, 1.28, 7.68, 8.96], "windows with nothing present are skipped and counted"
    assert windower.counters.empty_windows == 4
    assert covered[found.index(8.96)].all(), "one lost sample is interpolated"


def test_a_clock_set_back_begins_a_new_epoch():
    windower = Windower(toy_task(), ("acc",))
    windower.feed(samples("acc", 1000, 1010, 50, 3), 0.0)
    before = drain(windower, 0.0)
    windower.feed(samples("acc", 1010, 1013, 50, 3), 0.5)
    windower.feed(samples("acc", 5, 15, 50, 3), 1.0)
    after = drain(windower, 1.0)
    assert starts(before)[0] == 999.68
    assert windower.counters.clock_steps == 1
    assert min(starts(after)) == pytest.approx(5.12)
    assert max(starts(after)) > 1000, "what was open before the step is closed, not lost"


def test_a_jump_of_a_year_makes_no_million_windows():
    windower = Windower(toy_task(), ("acc",))
    windower.feed(samples("acc", 0, 10, 50, 3), 0.0)
    year = 365 * 86400.0
    windower.feed(samples("acc", year, year + 10, 50, 3), 1.0)
    found = drain(windower, 1.0)
    assert 10 < len(starts(found)) < 20
    assert all(w.present_BM.any(axis=1).all() for w in found)
    assert windower.counters.empty_windows > 20_000_000


def test_a_batch_of_windows_costs_the_same_however_long_the_recording_is(monkeypatch):
    """One that is all gaps, as times in milliseconds make it, would else take hours to cut."""
    task, looked, unique = toy_task(), 0, np.unique
    task = task.model_copy(update={"window": task.window.model_copy(update={"min_coverage": 1e-3})})

    def counted(values, *args, **more):
        nonlocal looked
        looked += np.size(values)
        return unique(values, *args, **more)

    monkeypatch.setattr(np, "unique", counted)
    costs = []
    for count in (20_000, 80_000):
        looked, windower, t = 0, Windower(task, ["acc"]), np.arange(count) * 20.0
        windower.feed(SampleBatch("acc", t, np.zeros((count, 3), np.float32)), 0.0)
        assert len(windower.flush()) > 100
        costs.append(looked)
    assert costs[0] == costs[1]


def test_a_modality_far_behind_is_late_not_a_leak():
    windower = Windower(toy_task(), max_skew_s=60)
    for k in range(200):
        windower.feed(samples("acc", 10000 + k, 10001 + k, 50, 3), float(k))
        windower.feed(samples("gyr", k, k + 1, 25, 2), float(k))
        drain(windower, float(k))
    assert windower.counters.late > 0
    assert sum(len(t.arrays()[0]) for t in windower._tracks.values()) < 70 * 75


def test_wrong_channels_are_ignored_and_counted():
    windower = Windower(toy_task())
    windower.feed(samples("acc", 0, 1, 50, 2), 0.0)
    windower.feed(samples("magnetometer", 0, 1, 50, 3), 0.0)
    assert windower.counters.ignored == 100


def test_the_batch_helper_is_the_live_windower():
    task, recording = toy_task(), toy_recording(60)
    whole = windows_of_recording(task, recording)
    windower = Windower(task)
    found = []
    for begin in np.arange(0, 60, 0.7):
        now = float(begin)
        labels = (recording.label_t >= begin) & (recording.label_t < begin + 0.7)
        windower.feed(LabelBatch(recording.label_t[labels], recording.label[labels]), now)
        for name, stream in recording.streams.items():
            part = (stream.t >= begin) & (stream.t < begin + 0.7)
            windower.feed(SampleBatch(name, stream.t[part], stream.values[part]), now)
        found += drain(windower, now)
    live = np.concatenate([w.x["acc"] for w in found])
    np.testing.assert_allclose(live, whole.x["acc"][: len(live)], atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([w.y_B for w in found]), whole.y_B[: len(live)])
    assert len(whole) - len(live) <= 2


def test_a_slow_sensor_is_covered_between_its_own_samples():
    from protocol.tasks.task import Modality  # noqa: PLC0415 - only here

    task = toy_task(modalities=(Modality(name="cpu", channels=1, rate_hz=1.0),))
    stream = Stream(np.arange(30.0), np.arange(30, dtype=np.float32)[:, None])
    assert windows_of_recording(task, Recording({"cpu": stream})).present_BM.all()


def test_the_helper_names_what_does_not_fit():
    with pytest.raises(Misconfigured, match="magnetometer"):
        windows_of_recording(toy_task(), Recording({"magnetometer": motion(5, 50, 3)}))
    with pytest.raises(Misconfigured, match="'acc' has 2 channels"):
        windows_of_recording(toy_task(), Recording({"acc": motion(5, 50, 2)}))
