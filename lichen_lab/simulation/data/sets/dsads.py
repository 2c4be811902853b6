"""DSADS: 19 activities of 8 people who wear five units; windows of 5 s at 25 Hz, half of each recording.

B. Barshan, K. Altun, Daily and Sports Activities, UCI 2010. No split is official: a fleet deals people.

Packed form, ``dsads_p<person>.npz``: ``x`` (B, 45, 125) int16, to be multiplied by ``scale`` (45,) float32;
``y`` (B,) from 0; ``segment`` (B,), a window's place in its recording. The channels are those of five units,
of each the accelerometer, the gyroscope and the magnetometer with three axes.
"""

from typing import Final

import numpy as np

from lichen_lab.simulation.data.access.packed import ArrayForm, read_packed
from lichen_lab.simulation.data.access.split import DataSplit, complete
from protocol.tasks.task import Modality

FOLDER: Final = "dsads"
RATE_HZ: Final = 25.0
SAMPLES: Final = 125
WINDOW_S: Final = SAMPLES / RATE_HZ
PEOPLE: Final = tuple(range(1, 9))
UNITS: Final = ("torso", "right arm", "left arm", "right leg", "left leg")
LABELS: Final = (
    "sitting",
    "standing",
    "lying on back",
    "lying on right side",
    "ascending stairs",
    "descending stairs",
    "standing in an elevator still",
    "moving around in an elevator",
    "walking in a parking lot",
    "walking on a treadmill flat",
    "walking on a treadmill inclined",
    "running on a treadmill",
    "exercising on a stepper",
    "exercising on a cross trainer",
    "cycling horizontal",
    "cycling vertical",
    "rowing",
    "jumping",
    "playing basketball",
)
_AXES: Final = 3
_SENSORS: Final = (("accelerometer", "m/s^2"), ("gyroscope", "rad/s"), ("magnetometer", "1"))
MODALITIES: Final = tuple(
    Modality(name=name, channels=_AXES * len(UNITS), rate_hz=RATE_HZ, unit=unit) for name, unit in _SENSORS
)
"""Each with the axes x, y, z of every unit, in the order of :data:`UNITS`."""
_CHANNELS: Final = _AXES * len(_SENSORS) * len(UNITS)
_FORMS: Final = {
    "x": ArrayForm(("B", _CHANNELS, SAMPLES), "int16"),
    "scale": ArrayForm((_CHANNELS,), "numbers"),
    "y": ArrayForm(("B",), low=0, high=len(LABELS) - 1),
    "segment": ArrayForm(("B",), low=1),
}


def file_name(person: int) -> str:
    """Of the packed form."""
    return f"dsads_p{person}.npz"


def load(person: int) -> DataSplit:
    """A person's windows, activity by activity, with :data:`MODALITIES`.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    arrays = read_packed(FOLDER, file_name(person), "DSADS", _FORMS)
    x_BCT = arrays["x"].astype(np.float32) * arrays["scale"].astype(np.float32)[:, None]
    by_sensor = x_BCT.reshape(len(x_BCT), len(UNITS), len(_SENSORS), _AXES, SAMPLES)
    x = {
        modality.name: np.ascontiguousarray(by_sensor[:, :, at].reshape(len(x_BCT), -1, SAMPLES))
        for at, modality in enumerate(MODALITIES)
    }
    y_B = arrays["y"].astype(np.int64)
    return DataSplit(complete(x, y_B), np.full(len(y_B), person, np.int64))
