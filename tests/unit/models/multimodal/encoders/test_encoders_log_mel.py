"""The log-mel spectrogram against one that NumPy computes, frame by frame, in 64 bits."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.multimodal.encoders.log_mel import LogMel
from models.multimodal.network import build
from protocol.tasks.network import Encoder
from tests.support.kinds import one_kind_task


def mel_of(hz: float) -> float:
    return 2595 * math.log10(1 + hz / 700)


def reference(x_T: NDArray[np.float32], rate: int, bands: int) -> NDArray[np.float64]:
    """``(bands, F)``: the definition of :class:`LogMel`, by FFT and a loop over bands."""
    length, hop = round(0.025 * rate), round(0.010 * rate)
    size = 2 ** math.ceil(math.log2(length))
    hann = np.hanning(length + 1)[:-1]
    hz = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, mel_of(rate / 2), bands + 2)]
    at = np.fft.rfftfreq(size, 1 / rate)
    filters = []
    for low, centre, high in zip(hz, hz[1:], hz[2:], strict=False):
        ends = min(low, centre - rate / size), max(high, centre + rate / size)
        weights = np.interp(at, [ends[0], centre, ends[1]], [0.0, 1.0, 0.0])
        filters.append(weights / weights.sum())
    around = np.pad(x_T.astype(np.float64), ((length - 1) // 2, length))
    frames = []
    for i in range(math.ceil(len(x_T) / hop)):
        power = np.abs(np.fft.rfft(hann * around[i * hop : i * hop + length], size)) ** 2
        frames.append(np.log(1e-6 + np.array(filters) @ (power / (hann**2).sum())))
    return np.stack(frames, axis=1)


def sounds(rate: int, samples: int) -> NDArray[np.float32]:
    """Noise, a chirp in noise of -40 dB, clicks, and silence that begins late."""
    rng = np.random.default_rng(0)
    t = np.arange(samples) / rate
    noise = rng.standard_normal(samples)
    chirp = np.sin(2 * np.pi * (100 + 1500 * t) * t) + 0.01 * noise
    clicks = np.where(np.arange(samples) % 997 == 0, 1.0, 0.0) + 0.003 * noise
    late = np.where(t > 0.1, 0.2 * noise, 0.0)
    return np.stack([noise, chirp, clicks, late]).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 16_000])
@pytest.mark.parametrize("bands", [40, 64])
@pytest.mark.parametrize("samples", [1, 4_000, 6_123])
def test_the_spectrogram_is_numpys(rate: int, bands: int, samples: int) -> None:
    x_BT = sounds(rate, samples)
    got = LogMel(rate, bands)(torch.from_numpy(x_BT)[:, None]).numpy()
    want = np.stack([reference(x_T, rate, bands) for x_T in x_BT])
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-4


def test_channels_follow_each_other_with_their_bands() -> None:
    x_BT = sounds(8_000, 800)
    made = LogMel(8_000, 40)
    got = made(torch.from_numpy(x_BT).reshape(2, 2, 800))
    assert got.shape == (2, 80, 10)
    assert torch.allclose(got.reshape(4, 40, 10), made(torch.from_numpy(x_BT)[:, None]), atol=1e-5)


def test_white_noise_of_variance_one_has_power_one_in_every_band() -> None:
    torch.manual_seed(0)
    power = LogMel(16_000, 64)(torch.randn(8, 1, 16_000))[:, :, 2:-2].exp().mean(dim=(0, 2))
    assert torch.allclose(power, torch.ones(64), atol=0.25)


@pytest.mark.parametrize("rate", [4_000, 44_100, 48_000])
def test_no_band_is_empty_at_other_rates(rate: int) -> None:
    assert bool((LogMel(rate, 128).mel.sum(dim=1) > 0.99).all())


def test_the_fixed_numbers_are_in_no_blob() -> None:
    net = build(one_kind_task("sound", Encoder(kind="mel", width=4, depth=1, bands=8)))
    fixed = {name.rpartition(".")[2] for name, _ in net.named_buffers() if "spectrum" in name}
    assert fixed == {"dft", "mel"}
    assert not any("spectrum" in name for name in net.sent)
