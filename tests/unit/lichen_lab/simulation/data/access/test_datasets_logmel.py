"""Log-mel spectrograms against what sound is."""

import numpy as np
import pytest

from lichen_lab.simulation.data.access import log_mel


def tone(hertz: float, seconds: float = 1.0, level: float = 0.5) -> np.ndarray:
    t = np.arange(int(seconds * log_mel.RATE_HZ)) / log_mel.RATE_HZ
    return (32767 * level * np.sin(2 * np.pi * hertz * t)).astype(np.int16)


@pytest.mark.parametrize("hertz", [150, 440, 1000, 2500, 3700])
def test_a_tone_is_loudest_in_the_band_around_it(hertz: float) -> None:
    (mel,) = log_mel.log_mel([tone(hertz)])
    assert mel.shape == (log_mel.BANDS, log_mel.FRAMES)
    bins = np.fft.rfftfreq(log_mel.FRAME, 1 / log_mel.RATE_HZ)
    centres = (log_mel.mel_filters() * bins).sum(axis=1) / log_mel.mel_filters().sum(axis=1)
    assert abs(int(mel[:, 10].argmax()) - int(np.abs(centres - hertz).argmin())) <= 1


def test_loudness_is_taken_out_but_its_course_stays() -> None:
    loud, soft = log_mel.log_mel([tone(800, level=0.8), tone(800, level=0.08)])
    band = int(loud[:, 10].argmax())
    assert abs(float(loud[band, 10] - soft[band, 10])) < 0.1
    fading = tone(800)
    fading[4000:] //= 10
    (mel,) = log_mel.log_mel([fading])
    assert float(mel[band, 5] - mel[band, 40]) == pytest.approx(20.0, abs=0.5)


def test_values_lie_between_silence_and_the_loudest() -> None:
    mel = log_mel.log_mel([tone(300, 0.3), np.zeros(500, np.int16), np.array([], np.int16)])
    assert mel.dtype == np.float32
    assert mel[0].max() == log_mel.RANGE_DB
    assert mel.min() == 0.0
    assert not mel[0][:, 20:].any()  # the clip ends at frame 15
    assert not mel[1:].any()


def test_of_a_long_clip_the_loudest_second_is_kept() -> None:
    clip = np.zeros(20_000, np.int16)
    clip[9000:17_000] = tone(1000)
    (long,) = log_mel.log_mel([clip])
    (short,) = log_mel.log_mel([tone(1000)])
    assert np.array_equal(long, short)


def test_many_clips_are_as_each_alone() -> None:
    clips = [tone(100 + 7 * n, 0.2) for n in range(300)]
    together = log_mel.log_mel(clips)
    for n in (0, 255, 256, 299):
        assert np.allclose(together[n], log_mel.log_mel([clips[n]])[0], atol=1e-3)


def test_every_band_hears_something_and_neighbours_meet() -> None:
    weights = log_mel.mel_filters()
    assert weights.shape == (log_mel.BANDS, log_mel.FRAME // 2 + 1)
    assert (weights.sum(axis=1) > 0.5).all()
    bins = np.fft.rfftfreq(log_mel.FRAME, 1 / log_mel.RATE_HZ)
    inner = weights[:, (bins > 150) & (bins < 3500)].sum(axis=0)
    assert np.allclose(inner, 1.0)
