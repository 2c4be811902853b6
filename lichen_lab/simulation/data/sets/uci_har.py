"""UCI-HAR: 30 people, 6 activities, a phone at the waist; 2.56 s windows of 128 samples at 50 Hz.

D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz, A Public Domain Dataset for Human Activity
Recognition Using Smartphones, ESANN 2013; the archive's folder "Inertial Signals". The official split is by
person: 21 train, 9 test.

Packed form, ``uci_har_<part>.npz``: ``x`` (B, 9, 128) float32 in the order of ``CHANNELS``, ``y`` (B,) from
1, ``subject`` (B,) from 1, rows in the official order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.split import DataSplit, Part
from models.contract import WindowSet
from models.tensors import read_arrays
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality

FOLDER: Final = "uci_har"
RATE_HZ: Final = 50.0
SAMPLES: Final = 128
WINDOW_S: Final = SAMPLES / RATE_HZ
LABELS: Final = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
MODALITIES: Final = (
    Modality(name="accelerometer", channels=3, rate_hz=RATE_HZ, unit="g"),
    Modality(name="gyroscope", channels=3, rate_hz=RATE_HZ, unit="rad/s"),
)
SIGNALS: Final = ("body_acc", "body_gyro", "total_acc")
"""g without gravity, rad/s, g as measured; each has axes x, y, z."""
CHANNELS: Final = tuple(f"{signal}_{axis}" for signal in SIGNALS for axis in "xyz")
PEOPLE: Final = tuple(range(1, 31))
TEST_PEOPLE: Final = (2, 4, 9, 10, 12, 13, 18, 20, 24)


def file_name(part: Part) -> str:
    """Of the packed form."""
    return f"uci_har_{part}.npz"


def packed(part: Part) -> Path:
    """The packed file of one part.

    Raises:
        Misconfigured: it is not here.
    """
    return locations.file(FOLDER, file_name(part))


def load(part: Part, acceleration: Literal["total", "body"] = "total") -> DataSplit:
    """The windows of the official training or test people.

    Args:
        part: which.
        acceleration: as the sensor measures it, or with gravity taken out by the data set's authors.

    Returns:
        Accelerometer (g) and gyroscope (rad/s), each ``x_BCT`` of 3 channels and 128 samples; all present.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    path = packed(part)
    arrays = read_arrays(path, "UCI-HAR")
    check(arrays, str(path))
    chosen = {"accelerometer": f"{acceleration}_acc", "gyroscope": "body_gyro"}
    x = {name: _of(arrays["x"], signal) for name, signal in chosen.items()}
    count = len(arrays["y"])
    windows = WindowSet(
        x=x,
        present_BM=np.ones((count, len(x)), np.bool_),
        quality_BM=np.ones((count, len(x)), np.float32),
        y_B=arrays["y"].astype(np.int64) - 1,
    )
    return DataSplit(windows, arrays["subject"].astype(np.int64))


def check(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    """Compare arrays with the packed form.

    Raises:
        Misconfigured: a key is missing, or a shape, type or value does not fit; names ``where`` and the key.
    """
    for key in ("x", "y", "subject"):
        if key not in arrays:
            raise Misconfigured(f"{where}: key {key!r} is not in it; UCI-HAR, packed, has x, y and subject")
    x, count = arrays["x"], len(arrays["y"])
    if x.shape != (count, len(CHANNELS), SAMPLES) or x.dtype != np.float32 or not np.isfinite(x).all():
        raise Misconfigured(
            f"{where}: key 'x' must be finite float32 of shape {(count, len(CHANNELS), SAMPLES)}, "
            f"it is {x.dtype} of shape {x.shape}"
        )
    for key, most in (("y", len(LABELS)), ("subject", len(PEOPLE))):
        values = arrays[key]
        if values.shape != (count,) or values.dtype.kind not in "iu" or not _within(values, most):
            raise Misconfigured(f"{where}: key {key!r} must be {count} integers from 1 to {most}")


def _within(values: NDArray[Any], most: int) -> bool:
    return not len(values) or (int(values.min()) >= 1 and int(values.max()) <= most)


def _of(x_BCT: NDArray[np.float32], signal: str) -> NDArray[np.float32]:
    first = CHANNELS.index(f"{signal}_x")
    return np.ascontiguousarray(x_BCT[:, first : first + 3])
