"""The gain of a gyroscope, against the accelerometer beside it. Pure NumPy.

Gravity is constant, so in the sensor's frame its direction u turns against the sensor: du/dt = -w x u. The
accelerometer measures u (smoothed, so that shaking averages out; its own gain does not matter), the gyroscope
w. With d the observed change of u over a time h, and p the change that w predicts,

    gain = sum p.p / sum p.d        rho = sum p.d / sqrt(sum p.p * sum d.d)

over a window. Most windows are not informative: the sensor hardly turns, or turns about the vertical, or
shakes more than it turns. Only those with enough turning and a high rho count. A gain is wrong if the last
few of them agree on it, until they are too old. Sensors with different axes have rho on both sides of 0:
windows with a rho far below 0 reduce the trust that a judgement needs.
"""

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.quality.accelerometer import GRAVITY
from edge_agent.windows.quality.checks import FOUND, Bools, Floats, Values
from protocol.tasks.task import Modality, Task

TURNING: Final = {"rad/s": 1.0, **dict.fromkeys(("deg/s", "dps", "°/s"), np.pi / 180)}
"""Radians per second, by the modality's unit."""
_AXES: Final = 3
_SMOOTH_S: Final = 0.32
_TURNED: Final = 1e-3
"""Mean square of d from which a window counts: about 1.8 degrees in 0.3 s."""
_ALIKE: Final = 0.9
_AGREE: Final = 2
_FRESH: Final = 32
"""Windows after which a gain is too old."""
_MOST_TRUST: Final = 8


def partner(task: Task, gyroscope: Modality) -> Modality | None:
    """The accelerometer on the same grid that a gyroscope can be compared with."""
    if (
        gyroscope.kind != "stream"
        or gyroscope.channels != _AXES
        or gyroscope.unit.strip().lower() not in TURNING
    ):
        return None
    fits = (
        m
        for m in task.modalities
        if (m.kind, m.channels, m.rate_hz) == ("stream", _AXES, gyroscope.rate_hz)
        and m.unit.strip().lower() in GRAVITY
    )
    return next(fits, None)


class GyroscopeGain:
    """Judges one gyroscope; remembers the last few informative windows."""

    def __init__(self, gyroscope: Modality) -> None:
        self._unit = TURNING[gyroscope.unit.strip().lower()]
        self._rate_hz = gyroscope.rate_hz
        self._gains: deque[tuple[int, float]] = deque(maxlen=_AGREE)
        self._seen = 0
        self._trust = 0

    def penalty(
        self, acceleration_BCT: Values, rotation_BCT: Values, sound_B: Bools, low: float, high: float
    ) -> Floats:
        """Penalty of each window, in time order.

        Args:
            acceleration_BCT: in any unit.
            rotation_BCT: in the modality's unit.
            sound_B: both are present, without a gap or a fault; other windows give no gain.
            low: gain below which it is wrong.
            high: gain above which it is wrong.
        """
        penalty_B = np.zeros(len(sound_B))
        verdict_B = np.zeros(len(sound_B), np.int64)
        gain_B = np.ones(len(sound_B))
        if sound_B.any():
            judged = gains(acceleration_BCT[sound_B], rotation_BCT[sound_B] * self._unit, self._rate_hz)
            gain_B[sound_B], verdict_B[sound_B] = judged
        for b in range(len(sound_B)):
            self._seen += 1
            if verdict_B[b] > 0:
                self._gains.append((self._seen, float(gain_B[b])))
                self._trust = min(_MOST_TRUST, self._trust + 1)
            elif verdict_B[b] < 0:
                self._trust = max(-_MOST_TRUST, self._trust - _MOST_TRUST // 2)
            fresh = [gain for seen, gain in self._gains if self._seen - seen < _FRESH]
            if len(fresh) == _AGREE and self._trust >= _AGREE:
                off = max(min(fresh) / high, low / max(fresh))
                penalty_B[b] = FOUND + (1 - FOUND) * min(1.0, off - 1) if off > 1 else 0.0
        return penalty_B


def gains(
    acceleration_BCT: Values, rotation_BCT: Floats | Values, rate_hz: float
) -> tuple[Floats, NDArray[np.int64]]:
    """Per window the gain (B,), and its verdict (B,): 1 the gain is valid, 0 unknown, -1 the axes differ.

    Args:
        acceleration_BCT: in any unit.
        rotation_BCT: in rad/s.
        rate_hz: of both.
    """
    width = max(2, round(_SMOOTH_S * rate_hz))
    if acceleration_BCT.shape[2] < 4 * width:
        return np.ones(len(acceleration_BCT)), np.zeros(len(acceleration_BCT), np.int64)
    u = _smooth(acceleration_BCT, width)
    u /= np.maximum(np.sqrt(np.square(u).sum(axis=1, keepdims=True)), 1e-12)
    w = _smooth(rotation_BCT, width)
    turn = np.empty_like(u)  # -w x u = u x w
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        turn[:, i] = u[:, j] * w[:, k] - u[:, k] * w[:, j]
    path = np.cumsum(turn, axis=2) / rate_hz
    d, p = (y[:, :, width:] - y[:, :, :-width] for y in (u, path))
    pd, pp, dd = (np.einsum("bct,bct->b", a, b) for a, b in ((p, d), (p, p), (d, d)))
    turned, alike = dd / d.shape[2] > _TURNED, _ALIKE * np.sqrt(pp * dd)
    verdict = np.where(turned & (pd > alike), 1, 0) - np.where(turned & (pd < -alike), 1, 0)
    return np.divide(pp, pd, out=np.ones_like(pp), where=verdict > 0), verdict


def _smooth(x_BCT: Floats | Values, width: int) -> Floats:
    """The moving average over ``width`` points, where all of them exist."""
    total = np.cumsum(x_BCT, axis=2, dtype=np.float64)
    out: Floats = total[:, :, width - 1 :].copy()
    out[:, :, 1:] -= total[:, :, :-width]
    return out / width
