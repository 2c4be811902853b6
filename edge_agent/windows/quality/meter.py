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

These are of streams. Sound has gaps, stuck and range, clipped from ``sound_clip_share``, and

silent   the standard deviation is under ``silent_level`` of full scale (``low``, ``high``; else 1).
dropouts  share of samples in stretches of ``dropout_s`` or more without any change; from ``dropout_share``.

Images have range, and (0 to 255, or ``low`` to ``high``, is the range)

dark     99 % of the values are under ``dark_level`` of the range.
overexposed  share of saturated values; reported from ``bright_share``.
constant  no value differs from another by more than ``constant_range`` of the range.
blurred  variance of the Laplacian over the variance of the image (at most 128 pixels a side) under
         ``blur_limit``; not of images that are dark or constant.
frozen   equal frames for ``frozen_s``; they are reported once two frames must have been equal.

Vectors have range, and frozen from ``frozen_vector_s``; texts are *empty* without any n-gram.

``lichen bench quality`` measures detections and false alarms of each (docs/benchmarks/quality.md).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality.checks import FOUND, Bools, Floats
from edge_agent.windows.quality.gyroscope import GyroscopeGain, partner
from edge_agent.windows.quality.sensor_checks import sensor_checks
from models.data.streams.windows import Windows
from protocol.tasks.task import Task

REASONS: Final = (
    "gaps", "stuck", "clipped", "out of range", "noisy", "wrong gain",
    "silent", "dropouts",
    "dark", "overexposed", "constant", "blurred", "frozen",
    "empty",
)  # fmt: skip
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
        self._sensors = {m.name: sensor_checks(m, used, task.window.length_s) for m in task.modalities}
        self._turns = {m.name: (p.name, GyroscopeGain(m)) for m in task.modalities if (p := partner(task, m))}

    def judge(self, windows: Windows) -> Quality:
        """Score every modality of every window."""
        shape = windows.present_BM.shape
        penalty_BMR = np.zeros((*shape, len(REASONS)))
        for column, name in enumerate(self._names):
            present_B = windows.present_BM[:, column]
            if present_B.any():
                x_BCT, covered_BT = windows.x[name][present_B], windows.covered[name][present_B]
                checked = self._sensors[name].penalties(x_BCT, covered_BT, windows.start_B[present_B])
                for reason, penalty_B in checked.items():
                    penalty_BMR[present_B, column, REASONS.index(reason)] = penalty_B
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
