"""Sources on real GStreamer: values and times of files, what is refused, what is lost and counted."""

import ctypes
import re
from contextlib import suppress
from errno import EACCES, EBUSY, EIO, ENODEV

import numpy as np
import pytest

from edge_agent.media.library import Library
from edge_agent.media.pipeline import code_of
from edge_agent.sources.gstreamer.reader_process import reported_error
from edge_agent.sources.reader_thread import read_in_thread
from protocol.errors import Transient
from protocol.tasks.task import Modality, Task
from runtime.process import landlock
from tests.support.sensors.gstreamer import (
    batches_of,
    launch,
    opened,
    read,
    require_gstreamer,
    write_jpegs,
    write_wav,
)
from tests.support.services import beside, until


@pytest.fixture(autouse=True)
def _gstreamer():
    require_gstreamer()


async def failure(source):
    """The error with which it ends."""
    with pytest.raises((OSError, Transient)) as found:
        await read(source)
    return found.value


@pytest.mark.parametrize("play", ["fast", pytest.param("realtime", marks=pytest.mark.long)])
async def test_a_wav_file_comes_sample_by_sample_with_its_own_times(tmp_path, play):
    samples = np.arange(-4000, 4000, dtype=np.int16)
    write_wav(tmp_path / "a.wav", samples, 8000)
    source = opened(
        tmp_path,
        media="sound",
        rate_hz=8000,
        play=play,
        pipeline=f"filesrc location={tmp_path}/a.wav ! wavparse",
    )
    t, values = await read(source)
    assert (values[:, 0] * 32768).astype(np.int16).tolist() == samples.tolist()
    assert np.abs(np.diff(t) - 1 / 8000).max() < 1e-6
    assert source.state == "m is played"


@pytest.mark.long
async def test_a_long_file_waits_for_the_agent_and_loses_nothing(tmp_path):
    samples = np.random.default_rng(0).integers(-9000, 9000, 1_200_000).astype(np.int16)
    write_wav(tmp_path / "a.wav", samples, 48_000)
    source = opened(
        tmp_path,
        media="sound",
        rate_hz=48_000,
        play="fast",
        pipeline=f"filesrc location={tmp_path}/a.wav ! wavparse",
    )
    _, values = await read(source)
    assert np.array_equal((values[:, 0] * 32768).astype(np.int16), samples)
    assert not source.counters.get("dropped_samples")


@pytest.mark.long
async def test_sound_is_brought_to_the_rate_and_channels_that_are_asked_for(tmp_path):
    t_8k = np.arange(8000) / 8000
    write_wav(tmp_path / "a.wav", (16000 * np.sin(2 * np.pi * 200 * t_8k)).astype(np.int16), 8000)
    source = opened(
        tmp_path,
        media="sound",
        channels=2,
        rate_hz=16_000,
        play="fast",
        pipeline=f"filesrc location={tmp_path}/a.wav ! wavparse",
    )
    t, values = await read(source)
    assert values.shape == (len(t), 2)
    assert abs(len(t) - 16_000) < 200
    strongest = np.abs(np.fft.rfft(values[:, 0])).argmax() * 16_000 / len(t)
    assert abs(strongest - 200) < 2


async def test_colours_and_the_middle_of_a_picture_arrive_at_their_places(tmp_path):
    picture = "videotestsrc is-live=true pattern=smpte75 ! video/x-raw,width=280,height=70"
    source = opened(tmp_path, media="image", width=7, height=7, fit="stretch", pipeline=picture)
    _, values = await read(source, bool)
    red, green, blue = values[0].reshape(3, 7, 7)[
        :, 2
    ]  # bars: white, yellow, cyan, green, magenta, red, blue
    assert (red > 128).tolist() == [True, True, False, False, True, True, False]
    assert (green > 128).tolist() == [True, True, True, True, False, False, False]
    assert (blue > 128).tolist() == [True, False, True, False, True, False, True]
    middle = opened(tmp_path, media="image", width=1, height=1, pipeline=picture)
    _, values = await read(middle, bool)
    assert (values[0] > 128).tolist() == [False, True, False], "cut off to the middle bars"


async def test_a_jpeg_that_cannot_be_decoded_is_a_gap_and_is_counted(tmp_path):
    folder = tmp_path / "frames"
    write_jpegs(folder, 6)[2].write_bytes(b"no picture at all")
    caps = "image/jpeg,framerate=10/1,width=64,height=48"
    launch(
        *f"multifilesrc location={folder}/f%d.jpg index=1 stop-index=6 caps={caps}".split(),
        *f"! avimux ! filesink location={tmp_path}/film.avi".split(),
    )
    source = opened(
        tmp_path,
        media="image",
        rate_hz=10,
        play="fast",
        pipeline=f"filesrc location={tmp_path}/film.avi ! avidemux ! jpegdec",
    )
    t, values = await read(source)
    assert np.round(t - t[0], 3).tolist() == [0, 0.1, 0.3, 0.4, 0.5]
    assert values.shape == (5, 96 * 96 * 3)
    assert source.counters["warnings"] == 1
    assert "jpegdec0: a frame was not decoded" in source.state


async def test_images_come_at_most_at_the_rate_that_is_asked_for(tmp_path):
    frames = "videotestsrc num-buffers=120 ! video/x-raw,width=16,height=16,framerate=30/1"
    source = opened(tmp_path, media="image", rate_hz=4, play="fast", width=8, height=8, pipeline=frames)
    t, _ = await read(source)
    assert len(t) == 17
    assert np.abs(t - t[0] - np.arange(17) / 4).max() < 0.08, "within the step of the camera"


async def test_a_rate_that_lies_is_reported_in_words(tmp_path):
    declared = "capssetter caps=audio/x-raw,rate=16000"
    real = "audio/x-raw,format=S16LE,channels=1,layout=interleaved,rate=12000"
    source = opened(
        tmp_path,
        media="sound",
        play="fast",
        pipeline=f"audiotestsrc num-buffers=90 ! {real} ! {declared}",
    )
    t, _ = await read(source)
    assert "it delivers 12000 samples a second, not 16000" in source.state
    assert source.counters["gaps"] > 10
    assert (np.diff(t) >= 0).all()


@pytest.mark.parametrize(
    ("pipeline", "error", "why"),
    [
        ("v4l2src device=/dev/null", OSError, "not a v4l2|isn't a v4l2"),
        ("nosuchelement", Transient, 'no element "nosuchelement"; apt-get install gstreamer1.0-plugins-base'),
        ("videotestsrc wrong=1", OSError, 'no property "wrong"'),
        ("videotestsrc is-live=true num-buffers=2", OSError, "the stream has ended"),
        ("videotestsrc", Transient, "sends more than 4 times what was asked for"),
        ("videotestsrc ! filesink location={0}/x videotestsrc", Transient, "filesink.*keep_raw"),
        ("videotestsrc ! bin.( videoconvert ! tcpserversink ) videotestsrc", Transient, "tcpserversink"),
    ],
)
async def test_what_a_pipeline_cannot_or_may_not_do_is_said_in_words(tmp_path, pipeline, error, why):
    source = opened(tmp_path, media="image", pipeline=pipeline.format(tmp_path))
    found = await failure(source)
    assert isinstance(found, error)
    assert re.search(why, str(found))
    assert str(getattr(found, "strerror", None) or found)[:40] in source.state
    assert not list(tmp_path.iterdir())


async def test_without_keep_raw_no_element_can_make_a_file_whatever_its_class(tmp_path):
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    stored = "videotestsrc is-live=true ! queue2 use-buffering=true temp-remove=false"
    pipeline = f"{stored} temp-template={tmp_path}/raw-XXXXXX ! identity"
    found = await failure(opened(tmp_path, media="image", pipeline=pipeline))
    assert found.errno == EIO
    assert not list(tmp_path.iterdir())
    with suppress(OSError):
        await read(opened(tmp_path, media="image", pipeline=pipeline, keep_raw=True), bool)
    assert [one.name[:4] for one in tmp_path.iterdir()] == ["raw-"], "with keep_raw it can"


@pytest.mark.parametrize(
    ("number", "code", "errno"),
    [(4, "busy", EBUSY), (15, "denied", EACCES), (3, "absent", ENODEV), (9, "failed", EIO)],
)
def test_faults_of_a_device_have_the_number_and_words_of_the_system(number, code, errno):
    """There is no camera here to be busy: GStreamer's own error with its number, as an element posts it."""
    library = Library()
    gst = ctypes.CDLL("libgstreamer-1.0.so.0")
    glib = ctypes.CDLL("libglib-2.0.so.0")
    glib.g_error_new_literal.restype = ctypes.c_void_p
    made = glib.g_error_new_literal(gst.gst_resource_error_quark(), number, b"Device '/dev/video0' is used")
    domain, found, words = library.taken_error(ctypes.c_void_p(made))
    assert code_of(domain, found) == code
    error = reported_error("/dev/video0", code_of(domain, found), words)
    assert isinstance(error, OSError)
    assert error.errno == errno
    assert "Device '/dev/video0' is used" in str(error)


async def test_a_camera_that_is_missing_is_waited_for(tmp_path):
    device = tmp_path / "video9"
    source = opened(tmp_path, kind="camera", device=str(device))

    async def collect():
        await read(source)

    async with beside(collect(), forever=False):
        await until(lambda: source.state == f"waits for {device}")


@pytest.mark.long
async def test_a_reader_follows_the_task_to_another_size(tmp_path):
    modality = Modality(name="m", kind="image", channels=1, height=24, width=32, rate_hz=4)
    task = Task(name="t", labels=("a", "b"), modalities=(modality,))
    source = opened(tmp_path, kind="camera", device="test")

    def twice(batches):
        if len(batches) == 1:
            source.follow(task)
        return len(batches) > 1

    first, second = await batches_of(source, twice)
    assert (first.values.shape[1], second.values.shape[1]) == (96 * 96 * 3, 24 * 32)


async def test_frames_of_two_sizes_that_wait_together_do_not_end_the_source():
    def work(outlet):
        outlet.put("m", np.array([1.0]), np.zeros((1, 12), np.float32))
        outlet.put("m", np.array([2.0]), np.zeros((1, 3), np.float32))

    shapes = [batch.values.shape async for batch in read_in_thread(work, "m", {})]
    assert shapes == [(1, 12), (1, 3)]
