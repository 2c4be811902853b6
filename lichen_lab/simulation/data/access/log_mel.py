"""Log-mel spectrograms of short clips, in NumPy.

Frames of ``FRAME`` samples under a Hann window, every ``HOP`` samples; their power spectrum; ``BANDS``
triangular filters whose corners lie evenly on the mel scale, mel(f) = 2595 log10(1 + f / 700); decibels above
a floor that lies ``RANGE_DB`` below the clip's loudest value. So loudness is taken out, and 0 is silence.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

RATE_HZ: Final = 8000
SECONDS: Final = 1.0
FRAME: Final = 256
HOP: Final = 160
BANDS: Final = 32
LOWEST_HZ: Final = 60.0
RANGE_DB: Final = 80.0
FRAMES: Final = round(SECONDS * RATE_HZ) // HOP
FRAMES_HZ: Final = RATE_HZ / HOP
VERSION: Final = 1
"""Raised when the values of a clip change, so that older cached results are not used."""
_BLOCK: Final = 256


def log_mel(clips: Sequence[NDArray[np.int16]]) -> NDArray[np.float32]:
    """Spectrograms of clips at ``RATE_HZ``; of longer ones, the loudest second.

    Args:
        clips: samples of each, one axis; shorter ones are followed by silence.

    Returns:
        (B, ``BANDS``, ``FRAMES``) float32, dB above the floor, 0 to ``RANGE_DB``.
    """
    weights_FM = mel_filters().T
    out_BMT = np.zeros((len(clips), BANDS, FRAMES), np.float32)
    for first in range(0, len(clips), _BLOCK):
        block_BN = np.stack([_one_second(clip) for clip in clips[first : first + _BLOCK]])
        frames_BTN = np.lib.stride_tricks.sliding_window_view(block_BN, FRAME, axis=1)[:, ::HOP][:, :FRAMES]
        power_BTF = np.abs(np.fft.rfft(frames_BTN * _hann())) ** 2
        out_BMT[first : first + _BLOCK] = _decibels(power_BTF @ weights_FM).transpose(0, 2, 1)
    return out_BMT


def mel_filters() -> NDArray[np.float64]:
    """(``BANDS``, FRAME // 2 + 1) weights of the bins: triangles of height 1 between neighbours' centres."""
    corners_mel = np.linspace(_mel(LOWEST_HZ), _mel(RATE_HZ / 2), BANDS + 2)
    corners_Hz = 700.0 * (10.0 ** (corners_mel / 2595.0) - 1.0)
    bins_Hz = np.fft.rfftfreq(FRAME, 1.0 / RATE_HZ)
    low, centre, high = corners_Hz[:-2, None], corners_Hz[1:-1, None], corners_Hz[2:, None]
    rising, falling = (bins_Hz - low) / (centre - low), (high - bins_Hz) / (high - centre)
    weights_MF: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return weights_MF


def _mel(hertz: float) -> float:
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _hann() -> NDArray[np.float64]:
    """Periodic: its first value is 0, its middle 1."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)


def _one_second(clip_N: NDArray[np.int16]) -> NDArray[np.float64]:
    """The clip's (loudest) second in units of full scale, and room for the last frame."""
    wanted = round(SECONDS * RATE_HZ)
    samples = clip_N.astype(np.float64) / 32768.0
    if len(samples) > wanted:
        energy = np.concatenate([[0.0], np.cumsum(samples**2)])
        first = int(np.argmax(energy[wanted:] - energy[:-wanted]))
        samples = samples[first : first + wanted]
    return np.pad(samples, (0, wanted + FRAME - HOP - len(samples)))


def _decibels(power_BTM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Above the floor of each clip; a clip of zeros is silence throughout."""
    loudest_B = power_BTM.max(axis=(1, 2), keepdims=True)
    loudest_B = np.where(loudest_B > 0, loudest_B, 1.0)
    floor = 10.0 ** (-RANGE_DB / 10.0)
    above_BTM: NDArray[np.float64] = 10.0 * np.log10(np.maximum(power_BTM / loudest_B, floor)) + RANGE_DB
    return above_BTM
