"""HAPT: the raw streams behind UCI-HAR, with the moments between postures. 30 people, 61 recordings, 50 Hz.

J.-L. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita, Transition-Aware Human Activity Recognition Using
Smartphones, Neurocomputing 171 (2016). The people are those of UCI-HAR with the same numbers: neither set is
unseen for a model that was trained on the other.

Packed form, ``hapt_raw.npz``: ``acc`` and ``gyro`` (N, 3) int16 in steps of ``acc_lsb_g`` and
``gyro_lsb_rad_s``; ``label`` (N,) from 1, -1 unlabelled; per recording ``rec_start`` and ``rec_length``
(samples), ``rec_subject`` and ``rec_number``.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.packed import ArrayForm, check_spans, read_packed
from lichen_lab.simulation.data.sets import uci_har
from lichen_lab.simulation.data.sets.spar import Recording

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
_PER_RECORDING: Final = ("rec_start", "rec_length", "rec_subject", "rec_number")
_FORMS: Final = {
    "label": ArrayForm(("N",)),
    "acc": ArrayForm(("N", 3)),
    "gyro": ArrayForm(("N", 3)),
    **dict.fromkeys(_PER_RECORDING, ArrayForm(("R",))),
    **dict.fromkeys(("acc_lsb_g", "gyro_lsb_rad_s"), ArrayForm((), "numbers")),
}


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
    arrays = read_packed(FOLDER, FILE, "HAPT", _FORMS)
    check_spans(arrays, FILE, "rec_start", "rec_length", len(arrays["label"]))
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
