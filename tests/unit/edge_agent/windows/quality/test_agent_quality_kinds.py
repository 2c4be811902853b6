"""Faults of cameras, microphones, vectors and texts, and the same data without them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality.meter import Quality, QualityMeter
from edge_agent.windows.window_sets import scored_windows
from lichen_lab.simulation.data.access.idx import read
from models.data.streams.batches import SampleBatch
from models.data.streams.recording import Recording, Stream
from models.data.streams.windows import Windower
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.data import real_data
from tests.support.tasks import small_task

SIZE = 96
CAMERA = Modality(name="m", kind="image", channels=3, height=SIZE, width=SIZE, rate_hz=5)
SOUND = Modality(name="m", kind="sound", channels=1, rate_hz=16_000)
VECTOR = Modality(name="m", kind="vector", channels=8, rate_hz=5)
TEXT = Modality(name="m", kind="text", channels=64, rate_hz=1)


def task(modality: Modality) -> Task:
    return small_task((modality,), window=Window(length_s=2.0, stride_s=1.0))


def judged(
    modality: Modality, t: np.ndarray, values: np.ndarray, settings: QualitySettings | None = None
) -> tuple[np.ndarray, list[set[str]]]:
    """Scores and reasons of the windows that the agent's windower cuts, closed one by one."""
    windower, meter = Windower(task(modality)), QualityMeter(task(modality), settings)
    windower.feed(SampleBatch("m", t, values.astype(np.float32)), 0.0)
    found: list[Quality] = []
    while (windows := windower.poll(0.0)) is not None:
        found.append(meter.judge(windows))
    scores = np.concatenate([q.quality_BM[:, 0] for q in found])
    return scores, [set(q.words(b, 0)) for q in found for b in range(len(q.quality_BM))]


def scene(seed: int, size: int = SIZE) -> np.ndarray:
    """(size, size): a picture with the spectrum of photographs, 0 to 255."""
    rng = np.random.default_rng(seed)
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    f[0, 0] = 1
    made = np.fft.ifft2(np.fft.fft2(rng.normal(size=(size, size))) / f).real
    return np.asarray(np.clip(127 + 50 * (made - made.mean()) / made.std(), 0, 255))


def pictures(change: Callable[[np.ndarray], np.ndarray] = np.asarray, count: int = 40) -> np.ndarray:
    """Frames of a still scene with the noise of a camera, (n, 3 * 96 * 96)."""
    rng = np.random.default_rng(1)
    still = np.repeat(change(scene(0))[None], 3, 0)
    noisy = still + rng.normal(0, 2, (count, 3, SIZE, SIZE))
    return np.clip(np.round(noisy), 0, 255).reshape(count, -1)


def smooth(picture: np.ndarray) -> np.ndarray:
    """Out of focus: blurred over 2 % of the width and more."""
    for _ in range(12):
        near = [np.roll(picture, step, axis) for axis in (0, 1) for step in (-1, 0, 1)]
        picture = np.mean(near, axis=0)
    return picture


FRAMES_T = np.arange(40) / 5
PICTURES = {
    "a still scene": (np.asarray, set()),
    "a scene of little contrast": (lambda p: 120 + 0.1 * p, set()),
    "a bright scene": (lambda p: 0.5 * p + 120, set()),
    "a cover before the lens": (lambda p: 0 * p + 3, {"dark"}),
    "night": (lambda p: 0.08 * p, {"dark"}),
    "the sun": (lambda p: 4 * p, {"overexposed"}),
    "out of focus": (smooth, {"blurred"}),
}


@pytest.mark.parametrize(("change", "reasons"), PICTURES.values(), ids=PICTURES.keys())
def test_faults_of_a_camera_are_named(change: Any, reasons: Any) -> None:
    scores, words = judged(CAMERA, FRAMES_T, pictures(change))
    assert len(words) >= 6
    assert all(reasons <= found for found in words), words
    if not reasons:
        assert all(not found for found in words), words
        assert (scores == 1).all()
    else:
        assert (scores < 0.5).all()


def test_a_grey_picture_is_constant_and_not_blurred() -> None:
    _, words = judged(CAMERA, FRAMES_T, np.full((40, 3 * SIZE * SIZE), 128))
    assert words[0] == {"constant"}


def test_a_picture_of_another_scale_is_judged_by_its_bounds() -> None:
    shares = CAMERA.model_copy(update={"low": 0.0, "high": 1.0})
    assert judged(shares, FRAMES_T, pictures() / 255)[1][0] == set()
    assert "dark" in judged(CAMERA, FRAMES_T, pictures() / 255)[1][0]
    assert "out of range" in judged(shares, FRAMES_T, pictures())[1][0]


def test_a_camera_that_repeats_a_frame_is_frozen_and_its_next_frame_is_not() -> None:
    good = pictures(count=100)
    frozen = good.copy()
    frozen[20:80] = good[20]
    t = np.arange(100) / 5
    _, words = judged(CAMERA, t, frozen)
    marked = [b for b, found in enumerate(words) if "frozen" in found]
    assert marked == list(range(3 + 5, 15)), "frames 20 to 79 are equal: from second 4, for 5 s, to second 16"


def test_one_frame_in_many_windows_is_not_frozen() -> None:
    """A camera of one frame in 20 s, in windows of 30 s."""
    slow = CAMERA.model_copy(update={"rate_hz": 0.05})
    grid = small_task((slow,), window=Window(length_s=30.0, stride_s=1.0))
    windower, meter = Windower(grid), QualityMeter(grid)
    windower.feed(SampleBatch("m", np.arange(0.0, 200.0, 20.0), pictures(count=10).astype(np.float32)), 0.0)
    found = []
    while (windows := windower.poll(0.0)) is not None:
        found.append(meter.judge(windows))
    assert not any(q.words(b, 0) for q in found for b in range(len(q.quality_BM)))


def test_blur_can_be_switched_off() -> None:
    _, words = judged(CAMERA, FRAMES_T, pictures(smooth), QualitySettings(blur_limit=0))
    assert words[0] == set()


def speech(seconds: float = 8.0) -> np.ndarray:
    """Voiced syllables with pauses, in 16 bits: -1 to 1."""
    rng = np.random.default_rng(0)
    t = np.arange(int(16_000 * seconds)) / 16_000
    syllable = np.clip(np.sin(2 * np.pi * 3 * t), 0, 1) ** 0.5
    voice = sum(np.sin(2 * np.pi * 120 * k * t + k) / k for k in range(1, 20))
    return np.round(32768 * (0.2 * syllable * voice + rng.normal(0, 0.003, len(t)))) / 32768


def torn(x: np.ndarray) -> np.ndarray:
    """A buffer of 20 ms is empty ten times in a second."""
    return np.where(np.arange(len(x)) % 1600 < 320, 0, x)


SOUNDS = {
    "speech": (np.asarray, set()),
    "quiet speech": (lambda x: np.round(x / 20 * 32768) / 32768, set()),
    "noise": (lambda x: np.random.default_rng(3).normal(0, 0.1, len(x)), set()),
    "too loud": (lambda x: np.clip(x, -0.12, 0.12), {"clipped"}),
    "a microphone that is off": (np.zeros_like, {"silent", "stuck", "dropouts"}),
    "a muted microphone": (lambda x: np.random.default_rng(3).normal(0, 1e-4, len(x)), {"silent"}),
    "buffers that ran empty": (torn, {"dropouts"}),
}


@pytest.mark.parametrize(("change", "reasons"), SOUNDS.values(), ids=SOUNDS.keys())
def test_faults_of_a_microphone_are_named(change: Any, reasons: Any) -> None:
    x = change(speech())
    scores, words = judged(SOUND, np.arange(len(x)) / 16_000, x[:, None])
    assert len(words) >= 6
    assert all(found == reasons for found in words), words
    assert (scores < 0.5).all() if reasons else (scores == 1).all()


def test_sound_in_whole_numbers_is_judged_by_its_bounds() -> None:
    whole = SOUND.model_copy(update={"low": -32768.0, "high": 32767.0})
    x = 32768 * speech()
    t = np.arange(len(x)) / 16_000
    assert judged(whole, t, x[:, None])[1][0] == set()
    assert judged(whole, t, x[:, None] / 32768)[1][0] == {"silent"}


def test_a_vector_that_does_not_change_is_frozen_after_a_minute() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(600, 8))
    values[50:] = values[50]
    _, words = judged(VECTOR, np.arange(600) / 5, values)
    assert [b for b, found in enumerate(words) if found] == list(range(69, len(words)))
    assert words[69] == {"frozen"}


def test_a_text_without_a_letter_is_empty() -> None:
    counts = np.random.default_rng(0).integers(0, 3, (20, 64))
    counts[10:] = 0
    _, words = judged(TEXT, np.arange(20.0), counts)
    assert words[0] == set()
    assert words[-1] == {"empty"}


@pytest.mark.data
def test_real_speech_is_seldom_at_fault() -> None:
    """The seconds of each speaker of FSDD, as 16 bits."""
    with np.load(real_data("fsdd") / "fsdd.npz") as data:
        audio, speaker = data["audio"], data["speaker"]
        spans = list(zip(data["start"], data["start"] + data["length"], strict=True))
    modality = SOUND.model_copy(update={"rate_hz": 8000.0, "low": -32768.0, "high": 32767.0})
    grid = small_task((modality,), window=Window(length_s=1.0, stride_s=1.0))
    for one in range(6):
        x = np.concatenate([audio[a:b] for (a, b), who in zip(spans, speaker, strict=True) if who == one])
        recording = Recording({"m": Stream(np.arange(len(x)) / 8000, x[:, None].astype(np.float32))})
        found_B = np.concatenate([q.found_BMR[:, 0].any(axis=1) for _, q in scored_windows(grid, recording)])
        assert len(found_B) > 150
        assert found_B.mean() < 0.02


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_images_are_seldom_at_fault(name: Any) -> None:
    x = read(real_data(name) / "t10k-images-idx3-ubyte.gz")[:1000].reshape(1000, -1)
    modality = CAMERA.model_copy(update={"channels": 1, "height": 28, "width": 28})
    _, words = judged(modality, np.arange(1000) / 5, x)
    assert np.mean([bool(found) for found in words]) < 0.01
