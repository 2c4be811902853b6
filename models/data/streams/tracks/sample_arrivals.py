"""When samples of a modality arrived: the part that tracks of samples and of frames share. Pure."""

import math
from typing import Final

_PATIENCE: Final = 3.0
"""A slow sensor is awaited for this many of its periods, if that is longer than the lateness."""


class SampleArrivals:
    """The newest time of a modality, and when it last delivered.

    Args:
        columns: values of a sample.
        period_s: between two samples.
    """

    def __init__(self, columns: int, period_s: float) -> None:
        self.columns = columns
        self.period_s = period_s
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.mark = -math.inf
        """The newest time seen."""
        self._arrived: float | None = None

    def _arrive(self, newest: float, now: float) -> None:
        self.mark = max(self.mark, newest)
        self._arrived = now

    def is_awaited(self, now: float, began: float, lateness_s: float) -> bool:
        """Whether it delivered recently (real seconds); before its first sample: since ``began``."""
        since = began if self._arrived is None else self._arrived
        return now - since <= max(lateness_s, _PATIENCE * self.period_s)
