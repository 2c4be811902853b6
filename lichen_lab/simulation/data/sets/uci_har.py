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
from lichen_lab.simulation.data.access.packed import ArrayForm, check_form
from lichen_lab.simulation.data.access.split import DataSplit, Part, complete
from models.tensors import read_arrays
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
_FORMS: Final = {
    "y": ArrayForm(("B",), low=1, high=len(LABELS)),
    "subject": ArrayForm(("B",), low=1, high=len(PEOPLE)),
    "x": ArrayForm(("B", len(CHANNELS), SAMPLES), "float32"),
}


def file_name(part: Part) -> str:
    """Of the packed form."""
    return f"uci_har_{part}.npz"


def packed(part: Part) -> Path:
    """The packed file of one part.

    Raises:
        Misconfigured: it is not here.
    """
    return locations.file(FOLDER, file_name(part))


def signals(part: Part) -> DataSplit:
    """The windows of the official training or test people: each of :data:`SIGNALS`, (B, 3, 128), all present.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    path = packed(part)
    arrays = read_arrays(path, "UCI-HAR")
    check(arrays, str(path))
    x = {name: np.ascontiguousarray(arrays["x"][:, 3 * m : 3 * m + 3]) for m, name in enumerate(SIGNALS)}
    return DataSplit(complete(x, arrays["y"].astype(np.int64) - 1), arrays["subject"].astype(np.int64))


def load(part: Part, acceleration: Literal["total", "body"] = "total") -> DataSplit:
    """The windows with an accelerometer (g) and a gyroscope (rad/s); see :func:`signals`.

    Args:
        part: which.
        acceleration: as the sensor measures it, or with gravity taken out by the data set's authors.
    """
    whole = signals(part)
    x = whole.windows.x
    chosen = {"accelerometer": x[f"{acceleration}_acc"], "gyroscope": x["body_gyro"]}
    return DataSplit(complete(chosen, whole.windows.y_B), whole.person_B)


def check(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    """Compare arrays with the packed form.

    Raises:
        Misconfigured: a key is missing, or a shape, type or value does not fit; names ``where`` and the key.
    """
    check_form(arrays, where, _FORMS)
