"""The clean streams that faults are put into: HAPT as recorded, UCI-HAR and SPAR joined back into streams.

Pieces are joined with a silence of one to two strides: no window can reach over it without being masked, so
that the joins are no gaps.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.sensor_faults import Recording
from lichen_lab.simulation.data.sets import hapt, spar, spar_windows, uci_har
from protocol.tasks.task import Task

NAMES: Final = ("accelerometer", "gyroscope")
TASK: Final = Task(name="quality", labels=("any", "other"), modalities=uci_har.MODALITIES)
"""Windows of 2.56 s at a stride of 1.28 s, as the agent cuts them."""
TUNED_ON: Final = tuple(range(1, 16))
"""HAPT people used to choose thresholds; no figure uses them."""
_RATE_HZ: Final = 50.0
_STRIDE: Final = 64
Values = NDArray[np.float32]


def joined(pieces: Iterable[Values]) -> Recording:
    """One recording from pieces ``x_TC`` (three channels of each modality), cut to whole strides."""
    times: list[NDArray[np.float64]] = []
    values: list[Values] = []
    stride = 0
    for piece in pieces:
        strides = len(piece) // _STRIDE
        if strides >= 2:  # noqa: PLR2004 - a window is two strides
            times.append((stride * _STRIDE + np.arange(strides * _STRIDE)) / _RATE_HZ)
            values.append(piece[: strides * _STRIDE])
            stride += strides + 1
    t_n, x_TC = np.concatenate(times), np.concatenate(values)
    return {
        f"{NAMES[0]}/t": t_n,
        f"{NAMES[0]}/values": x_TC[:, :3].copy(),
        f"{NAMES[1]}/t": t_n.copy(),
        f"{NAMES[1]}/values": x_TC[:, 3:].copy(),
    }


def runs_of(x_BCT: Values) -> list[Values]:
    """Join half-overlapping windows into pieces ``x_TC``; a gap begins a new piece."""
    half = x_BCT.shape[2] // 2
    goes_on = (x_BCT[1:, :, :half] == x_BCT[:-1, :, half:]).all(axis=(1, 2))
    starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    runs = []
    for run_BCT in np.split(x_BCT, starts[1:]):
        rest = run_BCT[1:, :, half:].transpose(0, 2, 1).reshape(-1, x_BCT.shape[1])
        runs.append(np.concatenate([run_BCT[0].T, rest]))
    return runs


def uci_har_people(split: DataSplit) -> list[Recording]:
    """One recording a person."""
    people = (split.of_person(int(person)).windows.x for person in np.unique(split.person_B))
    return [joined(runs_of(np.concatenate([x[name] for name in NAMES], axis=1))) for x in people]


def spar_people() -> list[Recording]:
    """One recording a person, with both arms joined."""
    series = spar.on_one_wrist(spar_windows.series())
    return [joined(one.values for one in spar.of_person(series, person)) for person in spar.PEOPLE]


def hapt_people() -> list[Recording]:
    """Recordings of the people not used for tuning."""
    found = hapt.recordings(*(person for person in hapt.PEOPLE if person not in TUNED_ON))
    return [{key: values for key, values in one.items() if not key.startswith("label/")} for one in found]


LOADERS: Final[Mapping[str, Callable[[], list[Recording]]]] = {
    "HAPT 16-30": hapt_people,
    "UCI-HAR test": lambda: uci_har_people(uci_har.load("test")),
    "SPAR": spar_people,
}
