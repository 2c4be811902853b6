"""The gain of an accelerometer, against gravity. Pure NumPy.

The strength of a signal cannot distinguish a change of gain from a change of activity. But an accelerometer
of three axes measures, on average over a window, gravity (speed hardly grows over 2 s), and gravity is known:

    |mean of a|  <=  1 g  <=  mean of |a|        (equal at rest; each is off by the sensor's own offset)

The left side is smaller if the sensor turns, the right one larger if it shakes. So a gain is too high if
|mean of a| > 1 + tolerance + allowance * s, with s the standard deviation of a in the window (a sensor swung
on an arm or a rope also measures centripetal acceleration), and too low if mean of |a| < 1 - tolerance. A
gain that is too low looks like a signal from which gravity was removed, so that side is judged only once the
sensor has shown gravity.
"""

from typing import Final

import numpy as np

from edge_agent.windows.quality.checks import FOUND, Bools, Floats, Values

GRAVITY: Final = {"g": 1.0, "mg": 1000.0, "m/s2": 9.80665, "m/s^2": 9.80665, "m/s²": 9.80665}
"""Measured by a sensor at rest, by the modality's unit."""
_AXES: Final = 3
_STEADY: Final = 0.5
"""|mean of a| from which a window shows gravity, in g: motion alone has no lasting mean."""


class AccelerometerGain:
    """Judges one modality; remembers only how often it has shown gravity.

    Args:
        unit: of the modality.
        channels: of the modality.
        minimum: windows that show gravity before a gain can be found too low.
    """

    def __init__(self, unit: str, channels: int, minimum: int) -> None:
        self._g = GRAVITY.get(unit.strip().lower()) if channels == _AXES else None
        self._minimum = minimum
        self._shown = 0

    def penalty(self, x_BCT: Values, covered_BT: Bools, tolerance: float, allowance: float) -> Floats:
        """Penalty of each window, in time order; 0 for a modality that does not measure gravity."""
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
        # Certain (penalty 1) at twice the tolerance.
        return np.where(off_B > 1, FOUND + (1 - FOUND) * np.minimum(1.0, off_B - 1), 0.0)
