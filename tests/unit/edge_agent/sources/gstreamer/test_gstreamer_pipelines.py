"""What kinds make of their settings: no value adds an element, no login is shown, sizes are the task's."""

import os
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from edge_agent.media.job import Job
from edge_agent.sources.gstreamer.pipelines import camera_job, microphone_job, pipeline_job
from edge_agent.sources.gstreamer.settings import CameraSettings, MicrophoneSettings, PipelineSettings
from edge_agent.sources.gstreamer.shapes import ImageShape, SoundShape
from edge_agent.sources.task_match import doubts, matching_modalities, source_mismatches
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task
from tests.support.sensors.gstreamer import opened

NASTY = 'x ! filesink location=/etc/passwd name="a'
TASK = Task(
    name="t",
    labels=("a", "b"),
    modalities=(
        Modality(name="m", kind="image", channels=1, height=24, width=32, rate_hz=4),
        Modality(name="s", kind="sound", channels=2, rate_hz=8000),
        Modality(name="v", kind="vector", channels=3, rate_hz=1),
    ),
)


def pieces(job: Job) -> list[str]:
    return [part.strip() for part in job.pipeline.split("!")]


@pytest.mark.parametrize("device", [NASTY, f"libcamera:{NASTY}"])
def test_the_name_of_a_camera_is_a_property_and_no_part_of_the_pipeline(device):
    job = camera_job(CameraSettings(modality="m", device=device), ImageShape(), None)
    assert "passwd" not in job.pipeline
    assert NASTY in next(iter(job.properties["lichen_source"].values()))
    assert job.parent == os.getpid()
    plain = camera_job(CameraSettings(modality="m", device=device[:9]), ImageShape(), None)
    assert pieces(job) == pieces(plain) or not device.startswith("lib")


def test_the_name_of_a_microphone_is_a_property_too():
    job = microphone_job(MicrophoneSettings(modality="m", device=NASTY), SoundShape())
    assert "passwd" not in job.pipeline
    assert job.properties == {"lichen_source": {"device": NASTY}}


def test_a_url_and_its_login_are_properties_and_only_in_the_job():
    file = Path("p")
    settings = CameraSettings(modality="m", url=f"rtsp://cam/{NASTY}", username="u", password_file=file)
    job = camera_job(settings, ImageShape(), "hunter22")
    assert "hunter22" not in job.pipeline
    assert job.properties["lichen_source"] == {
        "location": f"rtsp://cam/{NASTY}",
        "user-id": "u",
        "user-pw": "hunter22",
        "protocols": "tcp",
    }


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "camera", "url": "rtsp://joe:hunter22@cam/1"},
        {"kind": "camera", "url": "http://hunter22"},
        {"media": "image", "pipeline": "rtspsrc location=rtsp://joe:hunter22@cam/1 ! decodebin"},
        {
            "media": "image",
            "pipeline": "rtspsrc location=rtsp://cam/1 user-id=joe user-pw=hunter22 ! decodebin",
        },
    ],
    ids=["url", "scheme", "pipeline", "property"],
)
def test_a_login_in_the_configuration_is_refused_and_not_repeated(tmp_path, table):
    with pytest.raises(Misconfigured) as found:
        opened(tmp_path, **table)
    assert "source[0]: " in str(found.value)
    assert "hunter22" not in str(found.value)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"kind": "camera"}, "give either device or url"),
        ({"kind": "camera", "device": "test", "url": "rtsp://c"}, "give either device or url"),
        ({"kind": "camera", "device": "test", "width": 4}, "width and height go together"),
        ({"kind": "camera", "device": "test", "channels": 2}, "channels: an image has 1"),
        ({"kind": "camera", "device": "test", "width": 2048, "height": 2048}, "at most 4194304"),
        (
            {"kind": "camera", "url": "rtsp://c", "username": "u", "password_file": "none"},
            "password_file: .*none",
        ),
        ({"kind": "microphone", "rate_hz": 8000.5}, "rate_hz: of sound a whole number"),
        ({"media": "video", "pipeline": "x"}, r"source\[0\]\.media"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(tmp_path, table, why):
    with pytest.raises(Misconfigured, match=why):
        opened(tmp_path, **table)


def test_sizes_that_are_not_set_are_those_of_the_task_also_before_it_is_followed(tmp_path):
    camera = opened(tmp_path, kind="camera", device="test")
    sound = opened(tmp_path, kind="microphone", modality="s")
    assert matching_modalities(TASK, [camera, sound]) == ("m", "s")
    camera.follow(TASK)
    sound.follow(TASK)
    assert (camera.channels, camera.size) == ({"m": 768}, "32 x 24 pixels, grey, at most 4 a second")
    assert (sound.channels, sound.size) == ({"s": 2}, "2 channels at 8000 Hz")
    fixed = opened(tmp_path, kind="camera", device="test", width=8, height=8, channels=3)
    (words,) = source_mismatches(TASK, [fixed])
    assert "camera test: modality 'm' has 192 values a frame, not 768, the task says images of" in words


def test_a_modality_of_another_kind_and_a_missing_device_are_doubts(tmp_path):
    gone = opened(tmp_path, kind="camera", device="/dev/video-none", modality="v")
    wrong, missing = doubts(TASK, [gone])
    assert "delivers image, modality 'v' is of kind 'vector'" in wrong
    assert "the device is missing; the agent waits for it" in missing


def test_pixels_are_sorted_by_channel_and_padding_is_left_out():
    shape = ImageShape(channels=3, height=2, width=3)
    rows = np.zeros((2, 12), np.uint8)
    rows[:, :9] = np.arange(18).reshape(2, 9)
    rows[:, 9:] = 255
    values = shape.rows(rows.tobytes())
    assert values.shape == (1, 18)
    assert values.reshape(3, 2, 3)[0].tolist() == [[0, 3, 6], [9, 12, 15]]
    with pytest.raises(ValueError, match="reshape"):
        shape.rows(bytes(23))


def test_a_file_waits_and_a_device_drops():
    live = PipelineSettings(modality="m", media="sound", pipeline="a")
    fast = live.model_copy(update={"play": "fast"})
    assert "drop=true" in pipeline_job(live, SoundShape()).pipeline
    assert "leaky=no" in pipeline_job(fast, SoundShape()).pipeline
    assert (pipeline_job(live, SoundShape()).live, pipeline_job(fast, SoundShape()).live) == (True, False)


PAGE = (Path(__file__).resolve().parents[5] / "docs" / "cameras.md").read_text()
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TABLES = [table for block in BLOCKS for table in tomllib.loads(block).get("source", [])]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table['kind']}-{table['modality']}")
def test_a_table_of_the_page_makes_a_source(tmp_path, table):
    (tmp_path / "door-password").write_text("hunter22\n")
    assert set(opened(tmp_path, **table).channels) == {table["modality"]}


def test_the_page_shows_every_kind_and_its_task_is_one():
    assert {table["kind"] for table in TABLES} == {"camera", "microphone", "gstreamer"}
    (modalities,) = [found for block in BLOCKS if (found := tomllib.loads(block).get("modalities"))]
    Task(name="t", labels=("a", "b"), modalities=modalities)
