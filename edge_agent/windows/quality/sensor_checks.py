"""The checks of one modality, by its kind; each remembers what it needs of the past. NumPy.

:mod:`edge_agent.windows.quality.meter` explains the checks.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality import checks, frames, sound
from edge_agent.windows.quality.accelerometer import AccelerometerGain
from edge_agent.windows.quality.checks import FOUND, Bools, Floats, Values
from edge_agent.windows.quality.noise import NoiseHistory, excesses
from protocol.tasks.task import Modality


class SensorChecks(Protocol):
    """The checks of one modality."""

    def penalties(
        self, x_BCT: Values, covered_BT: Bools, start_B: NDArray[np.float64]
    ) -> Mapping[str, Floats]:
        """By reason, the penalty of each window (B,), in time order."""


def sensor_checks(modality: Modality, settings: QualitySettings, length_s: float) -> SensorChecks:
    """The checks that make sense for that kind. ``length_s``: of a window."""
    match modality.kind:
        case "stream":
            return _StreamChecks(modality, settings)
        case "sound":
            return _SoundChecks(modality, settings)
        case "image":
            return _ImageChecks(modality, settings, length_s)
        case "vector":
            return _VectorChecks(modality, settings, length_s)
        case "text":
            return _TextChecks()


class _StreamChecks:
    """Samples of a sensor."""

    def __init__(self, modality: Modality, settings: QualitySettings) -> None:
        self._modality, self._settings = modality, settings
        self._noise = NoiseHistory(settings.history, settings.min_history)
        self._gravity = AccelerometerGain(modality.unit, modality.channels, settings.min_history)

    def penalties(
        self,
        x_BCT: Values,
        covered_BT: Bools,
        start_B: NDArray[np.float64],  # noqa: ARG002 - of the interface
    ) -> Mapping[str, Floats]:
        s, m = self._settings, self._modality
        gaps_B = checks.gaps(covered_BT, s.gap_bad)
        stuck_B = checks.stuck(x_BCT, covered_BT, s.stuck_share, s.stuck_channel_share)
        clipped_B = checks.clipped(x_BCT, covered_BT, s.clip_share)
        good_B = (gaps_B == 0) & (stuck_B < FOUND) & (clipped_B < FOUND)
        excess_B = excesses(self._noise, x_BCT, good_B, s.noise_white, s.noise_excess)
        return {
            "gaps": gaps_B,
            "stuck": stuck_B,
            "clipped": clipped_B,
            "out of range": checks.out_of_range(x_BCT, covered_BT, m.low, m.high, s.range_share),
            "noisy": _noise_penalty(excess_B, s.noise_excess),
            "wrong gain": self._gravity.penalty(x_BCT, covered_BT, s.gain_tolerance, s.gain_allowance),
        }


class _SoundChecks:
    """Sound. Noise and gain are not judged: noise may be what is listened to, and loudness is no fault."""

    def __init__(self, modality: Modality, settings: QualitySettings) -> None:
        self._modality, self._settings = modality, settings

    def penalties(
        self,
        x_BCT: Values,
        covered_BT: Bools,
        start_B: NDArray[np.float64],  # noqa: ARG002 - of the interface
    ) -> Mapping[str, Floats]:
        s, m = self._settings, self._modality
        points = max(checks.MIN_POINTS, round(s.dropout_s * m.rate_hz))
        return {
            "gaps": checks.gaps(covered_BT, s.gap_bad),
            "stuck": checks.stuck(x_BCT, covered_BT, s.stuck_share, s.stuck_channel_share),
            "clipped": checks.clipped(x_BCT, covered_BT, s.sound_clip_share),
            "out of range": checks.out_of_range(x_BCT, covered_BT, m.low, m.high, s.range_share),
            "silent": sound.silent(x_BCT, s.silent_level * sound.full_scale(m)),
            "dropouts": sound.dropouts(x_BCT, covered_BT, points, s.dropout_share),
        }


class _ImageChecks:
    """Frames of a camera."""

    def __init__(self, modality: Modality, settings: QualitySettings, length_s: float) -> None:
        self._modality, self._settings = modality, settings
        self._size = (modality.height or 1, modality.width or 1)
        self._frozen = frames.FrozenFrames(length_s, settings.frozen_s)

    def penalties(
        self, x_BCT: Values, covered_BT: Bools, start_B: NDArray[np.float64]
    ) -> Mapping[str, Floats]:
        s, m = self._settings, self._modality
        level_BCT = frames.levels(m, x_BCT)
        dark_B = frames.dark(level_BCT, s.dark_level)
        constant_B = frames.constant(level_BCT, s.constant_range)
        blurred_B = frames.blurred(level_BCT, self._size, s.blur_limit)
        return {
            "out of range": checks.out_of_range(x_BCT, covered_BT, m.low, m.high, s.range_share),
            "dark": dark_B,
            "overexposed": frames.overexposed(level_BCT, s.bright_share),
            "constant": constant_B,
            "blurred": np.where((dark_B < FOUND) & (constant_B < FOUND), blurred_B, 0.0),
            "frozen": self._frozen.penalty(x_BCT, start_B),
        }


class _VectorChecks:
    """Vectors. Those with a value that is not finite are in no window; the windower counts them."""

    def __init__(self, modality: Modality, settings: QualitySettings, length_s: float) -> None:
        self._modality, self._settings = modality, settings
        self._frozen = frames.FrozenFrames(length_s, settings.frozen_vector_s)

    def penalties(
        self, x_BCT: Values, covered_BT: Bools, start_B: NDArray[np.float64]
    ) -> Mapping[str, Floats]:
        s, m = self._settings, self._modality
        return {
            "out of range": checks.out_of_range(x_BCT, covered_BT, m.low, m.high, s.range_share),
            "frozen": self._frozen.penalty(x_BCT, start_B),
        }


class _TextChecks:
    """Counts of n-grams."""

    def penalties(
        self,
        x_BCT: Values,
        covered_BT: Bools,  # noqa: ARG002 - of the interface
        start_B: NDArray[np.float64],  # noqa: ARG002 - of the interface
    ) -> Mapping[str, Floats]:
        return {"empty": frames.empty(x_BCT)}


def _noise_penalty(excess_B: Floats, limit: float) -> Floats:
    over_B = np.maximum(excess_B / limit, 1e-9)
    return np.where(over_B >= 1, np.minimum(1.0, FOUND + (1 - FOUND) * np.log10(over_B)), 0.0)
