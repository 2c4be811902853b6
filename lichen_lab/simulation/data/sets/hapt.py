"""HAPT: the raw streams behind UCI-HAR, with the moments between postures. 30 people, 61 recordings, 50 Hz.

J.-L. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita, Transition-Aware Human Activity Recognition Using
Smartphones, Neurocomputing 171 (2016). The people are those of UCI-HAR with the same numbers: neither set is
unseen for a model that was trained on the other.

Packed form, ``hapt_raw.npz``: ``acc`` and ``gyro`` (N, 3) int16 in steps of ``acc_lsb_g`` and
``gyro_lsb_rad_s``; ``label`` (N,) from 1, -1 unlabelled; per recording ``rec_start`` and ``rec_length``
(samples), ``rec_subject`` and ``rec_number``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import uci_har
from lichen_lab.simulation.data.sets.spar import Recording
from models.tensors import read_arrays
from protocol.errors import Misconfigured

FOLDER: Final = "hapt_raw"
FILE: Final = "hapt_raw.npz"
RATE_HZ: Final = 50.0
TRANSITIONS: Final = (
    *("stand to sit", "sit to stand", "sit to lie"),
    *("lie to sit", "stand to lie", "lie to stand"),
)
LABELS: Final = (*uci_har.LABELS, *TRANSITIONS)
MODALITIES: Final = uci_har.MODALITIES
PEOPLE: Final = uci_har.PEOPLE
_PER_SAMPLE: Final = ("acc", "gyro", "label")
_PER_RECORDING: Final = ("rec_start", "rec_length", "rec_subject", "rec_number")
_SCALES: Final = ("acc_lsb_g", "gyro_lsb_rad_s")


@dataclass(frozen=True)
class HaptSession:
    """One recording of one person.

    Attributes:
        person: 1 to 30.
        number: the person's n-th recording, from 1.
        recorded: accelerometer (g), gyroscope (rad/s), labels (index into ``LABELS``, -1: none) where they
            change.
    """

    person: int
    number: int
    recorded: Recording


def sessions(*people: int, transitions: bool = True) -> tuple[HaptSession, ...]:
    """The recordings of these people (none named: of all), in the file's order.

    Args:
        people: 1 to 30.
        transitions: label the moments between postures; else they are unlabelled, and the labels are those
            of UCI-HAR.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    path = locations.file(FOLDER, FILE)
    arrays = read_arrays(path, "HAPT")
    _check(arrays, str(path))
    most = len(LABELS) if transitions else len(uci_har.LABELS)
    label_N = arrays["label"].astype(np.int64)
    label_N = np.where((label_N >= 1) & (label_N <= most), label_N - 1, -1)
    found = []
    for start, length, person, number in zip(*(arrays[key].tolist() for key in _PER_RECORDING), strict=True):
        if not people or person in people:
            at = slice(start, start + length)
            recorded = _recording(
                _scaled(arrays["acc"][at], arrays["acc_lsb_g"]),
                _scaled(arrays["gyro"][at], arrays["gyro_lsb_rad_s"]),
                label_N[at],
            )
            found.append(HaptSession(person, number, recorded))
    return tuple(found)


def recordings(*people: int, transitions: bool = True) -> list[Recording]:
    """As :func:`sessions`, without persons."""
    return [one.recorded for one in sessions(*people, transitions=transitions)]


def _recording(
    acceleration_TC: NDArray[np.float32], rotation_TC: NDArray[np.float32], label_T: NDArray[np.int64]
) -> Recording:
    t = np.arange(len(label_T)) / RATE_HZ
    changes = np.flatnonzero(np.diff(label_T, prepend=-2))  # -2: the first sample is one
    return {
        "accelerometer/t": t,
        "accelerometer/values": acceleration_TC,
        "gyroscope/t": t.copy(),
        "gyroscope/values": rotation_TC,
        "label/t": t[changes],
        "label/values": label_T[changes],
    }


def _scaled(steps_TC: NDArray[np.int16], step: NDArray[np.float64]) -> NDArray[np.float32]:
    return (steps_TC * float(step)).astype(np.float32)


def _check(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    for key in (*_PER_SAMPLE, *_PER_RECORDING, *_SCALES):
        if key not in arrays:
            raise Misconfigured(f"{where}: key {key!r} is not in it; docs/data.md has the layout")
    samples, count = len(arrays["label"]), len(arrays["rec_start"])
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(("acc", "gyro"), (samples, 3))
    wanted |= {"label": (samples,)} | dict.fromkeys(_PER_RECORDING, (count,)) | dict.fromkeys(_SCALES, ())
    for key, shape in wanted.items():
        if arrays[key].shape != shape or arrays[key].dtype.kind not in ("f" if key in _SCALES else "iu"):
            raise Misconfigured(
                f"{where}: key {key!r} must be {'a number' if key in _SCALES else 'integers'} of shape "
                f"{shape}; it is {arrays[key].dtype} of shape {arrays[key].shape}"
            )
    start, length = (arrays[key].astype(np.int64) for key in ("rec_start", "rec_length"))
    if (start < 0).any() or (length < 1).any() or (start + length > samples).any():
        raise Misconfigured(f"{where}: rec_start and rec_length point outside the {samples} samples")
