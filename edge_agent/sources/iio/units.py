"""Units of Linux Industrial I/O, and their conversion to others.

The kernel's interface (Documentation/ABI/testing/sysfs-bus-iio) fixes the unit of ``(raw + offset) * scale``
by the type of a channel. Most are SI; some are a thousandth of it, and magnetometers give gauss.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from protocol.errors import Misconfigured

STANDARD_GRAVITY: Final = 9.80665
"""m/s2 in one g, by definition."""
_ACCELERATION: Final = {
    "m/s2": 1.0,
    "m/s^2": 1.0,
    "g": 1 / STANDARD_GRAVITY,
    "mg": 1000 / STANDARD_GRAVITY,
}
_ANGLE: Final = {"rad": 1.0, "deg": 180 / math.pi}
_TURN: Final = {"rad/s": 1.0, "deg/s": 180 / math.pi, "dps": 180 / math.pi}
_RELATIVE: Final = {"%": 1e-3, "m%": 1.0, "1": 1e-5}
_LENGTH: Final = {"m": 1.0, "cm": 100.0, "mm": 1000.0}

UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "accel": _ACCELERATION,
    "gravity": _ACCELERATION,
    "anglvel": _TURN,
    "angl": _ANGLE,
    "incli": {"deg": 1.0, "rad": math.pi / 180},
    "deltaangl": _ANGLE,
    "deltavelocity": {"m/s": 1.0},
    "velocity": {"m/s": 1.0, "km/h": 3.6},
    "magn": {"uT": 100.0, "T": 1e-4, "mT": 0.1, "nT": 1e5, "gauss": 1.0},
    "temp": {"degC": 1e-3, "mdegC": 1.0, "K": 1e-3, "degF": 1.8e-3},
    "pressure": {"Pa": 1000.0, "hPa": 10.0, "mbar": 10.0, "kPa": 1.0, "bar": 0.01},
    "humidityrelative": _RELATIVE,
    "positionrelative": _RELATIVE,
    "voltage": {"V": 1e-3, "mV": 1.0, "uV": 1000.0},
    "altvoltage": {"V": 1e-3, "mV": 1.0},
    "current": {"A": 1e-3, "mA": 1.0, "uA": 1000.0},
    "power": {"W": 1e-3, "mW": 1.0},
    "energy": {"J": 1.0, "Wh": 1 / 3600},
    "capacitance": {"F": 1e-9, "pF": 1000.0, "nF": 1.0},
    "resistance": {"ohm": 1.0, "kohm": 1e-3},
    "illuminance": {"lx": 1.0, "lux": 1.0},
    "distance": _LENGTH,
    "proximity": {"1": 1.0, **_LENGTH},
    "concentration": {"%": 1.0, "ppm": 1e4},
    "massconcentration": {"ug/m3": 1.0, "mg/m3": 1e-3},
    "electricalconductivity": {"S/m": 1.0},
    "ph": {"pH": 1.0},
    "rot": {"1": 1.0},
}
"""Type of channel -> unit -> factor for the kernel's value. The first unit is the default."""
_SHIFTS: Final = {("temp", "K"): 273.15, ("temp", "degF"): 32.0}


def kind_of(channel: str) -> str:
    """``accel_x`` -> ``accel``, ``voltage0-voltage1`` -> ``voltage``."""
    match = re.match(r"[a-z]+", channel)
    return "" if match is None else match[0]


def conversion(channel: str, unit: str | None) -> tuple[str, float, float]:
    """Unit, factor and offset added after it, for the kernel's value of a channel.

    Args:
        channel: its name, without ``in_`` and ``_raw``.
        unit: the requested one; None takes the default of the channel's type.

    Raises:
        Misconfigured: the type has no such unit; lists its units.
    """
    kind = kind_of(channel)
    factors = UNITS.get(kind, {"1": 1.0})
    chosen = next(iter(factors)) if unit is None else unit
    if chosen not in factors:
        raise Misconfigured(
            f"unit: {unit!r}: channel {channel!r} can be converted to {', '.join(factors)}; for another unit "
            "leave it out and set factor"
        )
    return chosen, factors[chosen], _SHIFTS.get((kind, chosen), 0.0)
