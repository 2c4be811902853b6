"""The gain of an accelerometer, against gravity. Pure NumPy.

A change of gain cannot be told from a change of activity by a signal's strength. But what an accelerometer of
three axes measures is, on average over a window, gravity (speed hardly grows over 2 s), and that is known:

    |mean of a|  <=  1 g  <=  mean of |a|        (equal at rest; each is wrong by the sensor's own offset)

The left side is smaller where the sensor turns, the right one larger where it shakes. So a gain is too high
where |mean of a| > 1 + tolerance + allowance * s, with s the standard deviation of a in the window (what is
swung on an arm or a rope is pulled outwards while it moves), and too low where mean of |a| < 1 - tolerance.
A gain that is too low looks like an accelerometer from whose signal gravity was taken out, so that side is
judged only once the sensor has shown gravity.
"""

from typing import Final

import numpy as np

from edge_agent.windows.quality.checks import FOUND, Bools, Floats, Values

GRAVITY: Final = {"g": 1.0, "mg": 1000.0, "m/s2": 9.80665, "m/s^2": 9.80665, "m/s²": 9.80665}
"""What a sensor at rest measures, by the modality's unit."""
_AXES: Final = 3
_STEADY: Final = 0.5
"""|mean of a| from which on a window shows gravity, in g: motion alone has none that lasts."""


class AccelerometerGain:
    """Judges one modality; remembers only how often it has shown gravity.

    Args:
        unit: of the modality.
        channels: of the modality.
        minimum: windows that show gravity before a gain is found too low.
    """

    def __init__(self, unit: str, channels: int, minimum: int) -> None:
        self._g = GRAVITY.get(unit.strip().lower()) if channels == _AXES else None
        self._minimum = minimum
        self._shown = 0

    def penalty(self, x_BCT: Values, covered_BT: Bools, tolerance: float, allowance: float) -> Floats:
        """Penalty of each window, in the order of time; 0 for a modality that does not measure gravity."""
        if self._g is None:
            return np.zeros(len(x_BCT))
        x = x_BCT.astype(np.float64) / self._g
        mean_BC = x.mean(axis=2)
        spread_B = np.sqrt(x.var(axis=2).sum(axis=1))
        low_B = np.sqrt(np.square(mean_BC).sum(axis=1))
        high_B = np.sqrt(np.square(x).sum(axis=1)).mean(axis=1)
        shows_B = (low_B >= _STEADY) & (np.abs(high_B - 1) <= tolerance)
        known_B = self._shown + np.cumsum(shows_B) >= self._minimum
        self._shown = min(self._minimum, self._shown + int(shows_B.sum()))
        above_B = low_B / (1 + tolerance + allowance * spread_B)
        below_B = np.where(known_B, (1 - tolerance) / np.maximum(high_B, 1e-9), 0.0)
        off_B = np.where(covered_BT.any(axis=1), np.maximum(above_B, below_B), 0.0)
        # Certain (penalty 1) at twice what was still tolerated.
        return np.where(off_B > 1, FOUND + (1 - FOUND) * np.minimum(1.0, off_B - 1), 0.0)
