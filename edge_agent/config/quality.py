"""``[quality]`` of ``agent.toml``."""

from typing import Annotated

from pydantic import Field

from protocol.base import Share
from runtime.settings.load import Section

Positive = Annotated[float, Field(gt=0, le=86400)]


class QualitySettings(Section):
    """``[quality]``: thresholds, explained in :mod:`edge_agent.windows.quality.meter`."""

    gap_bad: float = Field(default=0.2, gt=0, le=1)
    stuck_share: Share = 0.5
    stuck_channel_share: Share = 0.9
    clip_share: Share = 0.04
    range_share: Share = 0.02
    noise_excess: float = Field(default=8.0, gt=1)
    noise_white: Share = 0.6
    """Minimal flatness of the spectrum of noise (1: white); that of motion is far below."""
    gain_tolerance: float = Field(default=0.15, gt=0, lt=1)
    """Tolerated distance of an accelerometer at rest from 1 g, in g; calibration errors are up to about 0.1.
    """
    gain_allowance: float = Field(default=0.5, ge=0)
    """Additional tolerance, in g per g of standard deviation in the window."""
    turn_low: float = Field(default=0.57, gt=0, lt=1)
    """A gyroscope's gain is wrong below this."""
    turn_high: float = Field(default=1.4, gt=1)
    history: int = Field(default=1024, ge=32, le=65536)
    """Windows of the sensor's own past that define its normal noise."""
    min_history: int = Field(default=16, ge=4)
    """Noise is judged from this many windows."""
    sound_clip_share: Share = 0.01
    silent_level: Share = 0.0003
    """Of full scale: -70 dB."""
    dropout_s: Positive = 0.01
    """Sound that does not change for this long has a dropout."""
    dropout_share: Share = 0.05
    dark_level: Share = 0.1
    bright_share: Share = 0.5
    constant_range: Share = 0.02
    blur_limit: float = Field(default=0.05, ge=0)
    """Sharp images of 96 pixels have 0.2 or more; blurred over 2 % of their width, with a camera's noise,
    0.02 to 0.04. 0: blur is no fault."""
    frozen_s: Positive = 5.0
    frozen_vector_s: Positive = 60.0
