"""What people see of images, vectors and texts, and how much of them is kept for those who look."""

import base64
import json

import numpy as np

from edge_agent.windows.live.frame_views import LONGEST, MAX_VALUES, frame_view
from edge_agent.windows.live.live_signal import LiveSignal
from models.data.streams.batches import SampleBatch
from models.data.text_ngrams import counts_of
from protocol.tasks.task import Modality
from tests.support.tasks import small_task

CAMERA = Modality(name="camera", kind="image", channels=3, height=4, width=6, rate_hz=5)
VECTOR = Modality(name="vector", kind="vector", channels=1000, rate_hz=5)
WORDS = Modality(name="words", kind="text", channels=64, rate_hz=1)
IMU = Modality(name="imu", channels=2, rate_hz=50)


def pixels(modality: Modality, values: np.ndarray) -> np.ndarray:
    """(H, W, C) of what is shown."""
    seen = frame_view(modality, values.astype(np.float32).ravel())["picture"]
    data = np.frombuffer(base64.b64decode(seen["data"]), np.uint8)
    return data.reshape(seen["height"], seen["width"], seen["channels"])


def test_a_picture_is_shown_pixel_by_pixel_in_its_colours() -> None:
    chw = np.random.default_rng(0).integers(0, 256, (3, 4, 6))
    np.testing.assert_array_equal(pixels(CAMERA, chw), chw.transpose(1, 2, 0))


def test_pictures_of_another_scale_and_size_and_of_other_channels() -> None:
    shares = CAMERA.model_copy(update={"channels": 2, "low": 0.0, "high": 1.0})
    chw = np.full((2, 4, 6), 0.5)
    chw[0, 1, 2], chw[0, 0, 0] = 2.0, -1.0
    shown = pixels(shares, chw)
    assert shown.shape == (4, 6, 1)
    assert (shown[0, 0, 0], shown[1, 2, 0], shown[3, 3, 0]) == (0, 255, 128)
    large = CAMERA.model_copy(update={"height": 480, "width": 640})
    shown = pixels(large, np.zeros((3, 480, 640)))
    assert max(shown.shape) <= LONGEST


def test_vectors_and_texts_are_short() -> None:
    assert len(frame_view(VECTOR, np.arange(1000, dtype=np.float32))["values"]) <= MAX_VALUES
    assert frame_view(WORDS, counts_of(["kettle"], 64)[0]) == {"ngrams": 15}


def test_a_viewer_gets_the_newest_frame_and_holds_no_more() -> None:
    live = LiveSignal()
    live.use(small_task((CAMERA, IMU, WORDS)))
    with live.viewer() as viewer:
        for begin in range(50):
            t = begin + np.arange(10) / 10
            values = np.repeat(t[:, None], 72, 1).astype(np.float32)
            live.feed(SampleBatch("camera", t, values))
            live.feed(SampleBatch("imu", t, values[:, :2]))
            live.feed(SampleBatch("unknown", t, values))
        held = viewer._frames["camera"][1].values
        assert (held.shape, held.base is None or held.base.size == held.size) == ((1, 72), True)
        taken = viewer.take()
        assert taken["samples"].keys() == {"camera", "imu"}, "wide samples of no modality are not shown"
        assert taken["samples"]["camera"]["at"] == 49.9
        assert len(taken["samples"]["imu"]["v"]) == 2
        json.dumps(taken, allow_nan=False)
        assert viewer.take()["samples"] == {}
        live.feed(SampleBatch("camera", np.array([1.0]), np.full((1, 72), np.nan, np.float32)))
        json.dumps(viewer.take(), allow_nan=False)
