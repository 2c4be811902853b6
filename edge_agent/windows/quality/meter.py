"""The quality indicator: per modality and window a score from 0 to 1, and reasons as text. Pure NumPy.

score = product over the checks of (1 - penalty); a check that *reports* its fault has a penalty of at least
0.55, so that one fault alone brings the score under one half. The checks, per window ``x_CT``:

gaps     g = share of grid points not covered; penalty 0.55 * g / gap_bad, at most 1.
stuck    the longest run of equal neighbours, in all channels at once (reported from ``stuck_share`` of
         the window) or in one channel (from ``stuck_channel_share``). Needs 16 grid points: slow readings may
         well be constant.
clipped  a flat top: one channel is at its window's maximum or minimum in runs of 2 or more for
         ``clip_share`` of its points, while its range is over 16 times its smallest step (a sensor at rest
         is not clipped).
range    share of points outside the task's ``low``/``high``; reported from ``range_share``.
noise    white noise, ``noise_excess`` times the normal level in the sensor's own history
         (:mod:`edge_agent.windows.quality.noise`); penalty 0.55 + 0.45 * log10(excess / noise_excess).
gain     an accelerometer (three channels; unit g, mg or m/s2) no longer measures gravity
         (:mod:`edge_agent.windows.quality.accelerometer`); a gyroscope (three channels; unit rad/s, deg/s or
         dps) on the same grid as an accelerometer does not turn as gravity does
         (:mod:`edge_agent.windows.quality.gyroscope`).

``lichen bench quality`` measures detections and false alarms of each (docs/benchmarks/quality.md).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.agent import QualitySettings
from edge_agent.windows.quality import checks
from edge_agent.windows.quality.accelerometer import AccelerometerGain
from edge_agent.windows.quality.checks import FOUND, Bools, Floats
from edge_agent.windows.quality.gyroscope import GyroscopeGain, partner
from edge_agent.windows.quality.noise import NoiseHistory, excesses
from models.data.streams.windows import Windows
from protocol.tasks.task import Modality, Task

REASONS: Final = ("gaps", "stuck", "clipped", "out of range", "noisy", "wrong gain")
_GAIN: Final = REASONS.index("wrong gain")


@dataclass(frozen=True)
class Quality:
    """Scores ``quality_BM`` float32 (1 where the modality is missing), and reasons ``found_BMR``."""

    quality_BM: NDArray[np.float32]
    found_BMR: Bools
    """R: in the order of :data:`REASONS`."""

    def words(self, window: int, column: int) -> list[str]:
        """The reasons of one modality in one window."""
        return [word for word, found in zip(REASONS, self.found_BMR[window, column], strict=True) if found]


class _Sensor:
    """The history of one modality."""

    def __init__(self, modality: Modality, settings: QualitySettings) -> None:
        self._modality, self._settings = modality, settings
        self._noise = NoiseHistory(settings.history, settings.min_history)
        self._gravity = AccelerometerGain(modality.unit, modality.channels, settings.min_history)

    def penalties(self, x_BCT: NDArray[np.float32], covered_BT: Bools) -> Floats:
        """``penalty_RB``, in the order of :data:`REASONS`."""
        s, m = self._settings, self._modality
        gaps_B = checks.gaps(covered_BT, s.gap_bad)
        stuck_B = checks.stuck(x_BCT, covered_BT, s.stuck_share, s.stuck_channel_share)
        clipped_B = checks.clipped(x_BCT, covered_BT, s.clip_share)
        sound_B = (gaps_B == 0) & (stuck_B < FOUND) & (clipped_B < FOUND)
        excess_B = excesses(self._noise, x_BCT, sound_B, s.noise_white, s.noise_excess)
        return np.stack(
            [
                gaps_B,
                stuck_B,
                clipped_B,
                checks.out_of_range(x_BCT, covered_BT, m.low, m.high, s.range_share),
                _noise_penalty(excess_B, s.noise_excess),
                self._gravity.penalty(x_BCT, covered_BT, s.gain_tolerance, s.gain_allowance),
            ]
        )


@dataclass(frozen=True)
class ScoredWindows:
    """Windows with their quality; ``closed`` is when they were cut (monotonic seconds)."""

    task: Task
    windows: Windows
    quality: Quality
    closed: float


class QualityMeter:
    """Scores windows in time order. Keeps the history of each sensor in bounded memory."""

    def __init__(self, task: Task, settings: QualitySettings | None = None) -> None:
        self._names = task.modality_names
        used = settings or QualitySettings()
        self._settings = used
        self._sensors = {m.name: _Sensor(m, used) for m in task.modalities}
        self._turns = {m.name: (p.name, GyroscopeGain(m)) for m in task.modalities if (p := partner(task, m))}

    def judge(self, windows: Windows) -> Quality:
        """Score every modality of every window."""
        shape = windows.present_BM.shape
        penalty_BMR = np.zeros((*shape, len(REASONS)))
        for column, name in enumerate(self._names):
            present_B = windows.present_BM[:, column]
            if present_B.any():
                x_BCT, covered_BT = windows.x[name][present_B], windows.covered[name][present_B]
                penalty_BMR[present_B, column] = self._sensors[name].penalties(x_BCT, covered_BT).T
        self._compare(windows, penalty_BMR)
        quality_BM = np.prod(1.0 - penalty_BMR, axis=2)
        return Quality(quality_BM.astype(np.float32), penalty_BMR >= FOUND)

    def _compare(self, windows: Windows, penalty_BMR: Floats) -> None:
        """Compare modalities with each other, only where neither has a fault of another kind."""
        sound_BM = windows.present_BM & (penalty_BMR < FOUND).all(axis=2)
        low, high = self._settings.turn_low, self._settings.turn_high
        for name, (beside, rotation) in self._turns.items():
            column, other = self._names.index(name), self._names.index(beside)
            sound_B = sound_BM[:, column] & sound_BM[:, other]
            for modality in (name, beside):
                sound_B &= windows.covered[modality].all(axis=1)
            penalty_B = rotation.penalty(windows.x[beside], windows.x[name], sound_B, low, high)
            penalty_BMR[:, column, _GAIN] = np.where(windows.present_BM[:, column], penalty_B, 0.0)


def _noise_penalty(excess_B: Floats, limit: float) -> Floats:
    over_B = np.maximum(excess_B / limit, 1e-9)
    return np.where(over_B >= 1, np.minimum(1.0, FOUND + (1 - FOUND) * np.log10(over_B)), 0.0)
