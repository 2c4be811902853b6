"""Recordings through a real pipeline of GStreamer and the agent's windower, against a direct cut."""

import numpy as np
import pytest

from lichen_lab.benchmarks.suite.kinds import sound
from lichen_lab.simulation.data.played_sound import centred, played
from lichen_lab.simulation.data.sets import fsdd
from protocol.errors import Misconfigured
from tests.support.sensors.gstreamer import require_gstreamer

TASK = sound.task_of(0)


@pytest.fixture(autouse=True)
def _gstreamer():
    require_gstreamer()


def made(count):
    rng = np.random.default_rng(0)
    return [rng.integers(-32768, 32768, n).astype(np.int16) for n in rng.integers(100, 9000, count)]


def test_windows_of_a_played_file_are_those_of_the_recordings():
    clips, y_B = made(12), np.arange(12) % 10
    found = played(TASK, clips, y_B)
    assert np.array_equal(found.x["microphone"][:, 0], centred(clips, TASK.samples("microphone")))
    assert (found.y_B.tolist(), bool(found.present_BM.all())) == (y_B.tolist(), True)


@pytest.mark.parametrize("header_hz", [16_000, 7_000])
def test_a_file_whose_header_lies_about_its_rate_is_refused(header_hz):
    with pytest.raises(Misconfigured, match="is the rate in its header right"):
        played(TASK, made(3), np.zeros(3, np.int64), header_hz=header_hz)


def test_another_task_is_refused_by_name():
    overlapping = TASK.model_copy(update={"window": TASK.window.model_copy(update={"stride_s": 0.5})})
    with pytest.raises(Misconfigured, match="in windows side by side"):
        played(overlapping, made(1), np.zeros(1, np.int64))


@pytest.mark.data
@pytest.mark.long
def test_the_digits_of_fsdd_come_through_a_microphone_s_source_unchanged():
    clips = fsdd.clips()
    direct = sound.windows_of(clips)
    found = played(TASK, clips.audio, clips.digit)
    assert np.array_equal(found.x["microphone"], direct.x["microphone"])
    assert np.array_equal(found.y_B, direct.y_B)
