import numpy as np
import pytest

from edge_agent.windows.quality.checks import longest_run
from edge_agent.windows.quality.meter import QualityMeter
from edge_agent.windows.window_sets import windows_of_recording
from models.data.streams.batches import SampleBatch
from models.data.streams.recording import Recording, Stream
from models.data.streams.windows import Windower
from tests.support.agent.data import motion, toy_task


def judged(stream: Stream, name: str = "acc") -> tuple[np.ndarray, list[list[str]]]:
    task = toy_task()
    windower, meter = Windower(task, (name,)), QualityMeter(task)
    windower.feed(SampleBatch(name, stream.t, stream.values), 0.0)
    column = task.modality_names.index(name)
    scores, words = [], []
    while (windows := windower.flush()) is not None:
        quality = meter.judge(windows)
        scores.append(quality.quality_BM[:, column])
        words += [quality.words(b, column) for b in range(len(windows))]
    return np.concatenate(scores), words


def test_clean_motion_is_good():
    scores, words = judged(motion(120, 50, 3))
    assert scores.min() > 0.5
    assert not any(words)


def test_a_stuck_sensor_is_found():
    stream = motion(60, 50, 3)
    values = stream.values.copy()
    values[1500:2000] = values[1500]
    scores, words = judged(Stream(stream.t, values))
    assert "stuck" in words[25]
    assert scores[25] < 0.5
    assert "stuck" not in words[2]


def test_one_dead_axis_is_found():
    stream = motion(30, 50, 3)
    values = stream.values.copy()
    values[:, 1] = 0.25
    _, words = judged(Stream(stream.t, values))
    assert all("stuck" in w for w in words)


def test_clipping_is_found():
    stream = motion(60, 50, 3)
    _, words = judged(Stream(stream.t, np.clip(stream.values, -0.6, 0.6)))
    assert np.mean(["clipped" in w for w in words]) > 0.75  # the motion is weak for the rest


def test_a_coarse_sensor_at_rest_is_not_clipped():
    rng = np.random.default_rng(0)
    t = np.arange(3000) / 50
    values = (np.round(rng.normal(0, 1, (3000, 3))) / 512).astype(np.float32)
    _, words = judged(Stream(t, values))
    assert not any("clipped" in w or "stuck" in w for w in words)


def test_impossible_values_are_found():
    stream = motion(30, 50, 3)
    values = stream.values.copy()
    values[500:520] += 100
    _, words = judged(Stream(stream.t, values))
    assert "out of range" in words[7]
    assert "out of range" not in words[1]


def test_gaps_lower_the_score_before_they_mask():
    stream = motion(60, 50, 3)
    keep = np.ones(len(stream.t), bool)
    keep[1000:1026] = False
    scores, words = judged(Stream(stream.t[keep], stream.values[keep]))
    assert "gaps" in words[15]
    assert scores[15] < 0.5
    assert scores[3] > 0.9


def test_noise_is_found_against_the_sensors_own_history():
    stream = motion(240, 50, 3)
    rng = np.random.default_rng(3)
    values = stream.values.copy()
    sd = np.sqrt(values.var(0).mean() / 10)
    values[6000:9000] += rng.normal(0, sd, (3000, 3)).astype(np.float32)
    _, words = judged(Stream(stream.t, values))
    noisy = np.array(["noisy" in w for w in words])
    assert noisy[95:138].mean() > 0.95
    assert noisy[:90].sum() == 0


def test_a_constant_reading_of_a_slow_source_is_fine():
    from protocol.tasks.task import Modality, Window  # noqa: PLC0415 - only here

    task = toy_task(
        modalities=(Modality(name="memory", channels=1, rate_hz=1),), window=Window(length_s=10, stride_s=5)
    )
    stream = Stream(np.arange(60.0), np.full((60, 1), 40, np.float32))
    assert (windows_of_recording(task, Recording({"memory": stream})).quality_BM == 1).all()


def test_a_missing_modality_has_quality_one():
    windows = windows_of_recording(toy_task(), Recording({"acc": motion(20, 50, 3)}))
    assert (windows.quality_BM[:, 1] == 1).all()


@pytest.mark.parametrize(
    ("row", "length"), [([0, 0, 0], 0), ([1, 1, 1], 3), ([1, 0, 1, 1, 0], 2), ([0, 1, 1, 1], 3)]
)
def test_longest_run(row, length):
    assert longest_run(np.array([row], bool))[0] == length
