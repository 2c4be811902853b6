"""Ten minutes of sound at 16 kHz and of images at 5 a second beside an IMU, through an agent's process."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from edge_agent.cli.data_export import stored
from edge_agent.windows.window_sets import windows_of_recording
from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Modality, Window
from tests.support.sensors.page_device import page_device
from tests.support.tasks import small_task

SECONDS = 600
UNPLUGGED_S = (300.0, 330.0)
TASK = small_task(
    (
        Modality(name="camera", kind="image", channels=3, height=96, width=96, rate_hz=5),
        Modality(name="imu", channels=6, rate_hz=50),
        Modality(name="sound", kind="sound", channels=1, rate_hz=16_000, low=-32768, high=32767),
        Modality(name="words", kind="text", channels=256, rate_hz=0.1),
    ),
    window=Window(length_s=2.56, stride_s=1.28),
)


def recording() -> Recording:
    """The camera is pulled out for 30 s."""
    rng = np.random.default_rng(0)
    frame_t = np.arange(5 * SECONDS) / 5
    frame_t = frame_t[(frame_t < UNPLUGGED_S[0]) | (frame_t >= UNPLUGGED_S[1])]
    noise = rng.integers(0, 256, (97, 3 * 96 * 96)).astype(np.uint8)
    pixels = noise[np.arange(len(frame_t)) % 97]
    sound = rng.integers(-20_000, 20_000, 16_000 * SECONDS).astype(np.float32)
    label_t = np.arange(0, SECONDS, 60.0)
    text_t = np.arange(5, SECONDS, 10.0)
    return Recording(
        {
            "camera": Stream(frame_t, pixels, size=(3, 96, 96)),
            "imu": Stream(
                np.arange(50 * SECONDS) / 50, rng.normal(size=(50 * SECONDS, 6)).astype(np.float32)
            ),
            "sound": Stream(np.arange(len(sound)) / 16_000, sound[:, None]),
            "words": Stream(
                text_t,
                np.zeros((len(text_t), 0), np.float32),
                texts=tuple(f"minute {t // 60:.0f}" for t in text_t),
            ),
        },
        label_t,
        (np.arange(len(label_t)) % 3).astype(np.int64),
    )


@pytest.mark.long
def test_ten_minutes_of_image_sound_and_motion_are_stored_bit_for_bit(tmp_path: Path) -> None:
    made = recording()
    expected = windows_of_recording(TASK, made)
    with page_device(tmp_path, task=TASK, recording=made, speed=30, loop=False) as device:
        agent = device.start("run")
        end = time.monotonic() + 300
        status: dict[str, object] = {}
        while status.get("sources_ended") != ["replay toy.npz"]:
            assert agent.poll() is None, (tmp_path / "run.log").read_text()
            assert time.monotonic() < end, (status, (tmp_path / "run.log").read_text()[-4000:])
            time.sleep(1)
            said = device.run("status", "--format", "json")
            status = json.loads(said.stdout) if said.returncode == 0 else {}
        time.sleep(5)  # the last windows wait for late samples
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    found = stored(tmp_path / "state" / "store", TASK, None, unlabelled=True)
    assert len(expected) - 3 <= len(found) <= len(expected), "a stream that goes on may still fill the last"
    for name, x_BCT in expected.x.items():
        assert found.x[name].tobytes() == x_BCT[: len(found)].tobytes(), name
    np.testing.assert_array_equal(found.present_BM, expected.present_BM[: len(found)])
    np.testing.assert_array_equal(found.y_B, expected.y_B[: len(found)])
    start_B = np.arange(len(found)) * 1.28
    without = (start_B >= UNPLUGGED_S[0]) & (start_B + 2.56 <= UNPLUGGED_S[1])
    assert not found.present_BM[without, 0].any(), "a camera that was pulled out is a mask"
    assert found.present_BM[~without][1:-2, :3].all(), "and comes back"
    size = sum(path.stat().st_size for path in (tmp_path / "state" / "store").iterdir())
    assert size < len(found) * 160_000, "a pixel takes a byte, a sample of sound two"
