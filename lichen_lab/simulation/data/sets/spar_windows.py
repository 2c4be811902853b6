"""SPAR as labelled windows, split by people; ``sets.spar`` has the recordings and the citation.

From ``seglearn``'s file where that is installed, else from the packed form ``spar.npz``: ``x`` (N, 6)
float32, per series ``start``, ``length``, ``y``, ``subject`` and ``side``. Both hold the same values to the
bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.packed import ArrayForm, check_form, check_spans
from lichen_lab.simulation.data.access.split import DataSplit, Part, complete
from lichen_lab.simulation.data.sets import spar
from models.tensors import read_arrays
from protocol.errors import Misconfigured

FOLDER: Final = "spar"
FILE: Final = "spar.npz"
LABELS: Final = spar.LABELS
MODALITIES: Final = spar.MODALITIES
SAMPLES: Final = 128
WINDOW_S: Final = SAMPLES / spar.RATE_HZ
STRIDE: Final = 64
TEST_PEOPLE: Final = 3
_CHANNELS: Final = 6
_PER_SERIES: Final = ("subject", "side", "y", "start", "length")
_FORMS: Final = {
    "x": ArrayForm(("N", _CHANNELS), "float32"),
    **dict.fromkeys(_PER_SERIES, ArrayForm(("S",))),
}


def load(part: Part, seed: int = 0) -> DataSplit:
    """Windows of 2.56 s, half overlapping, none over the end of a series; all arms as if one arm.

    Args:
        part: seven people train, the other three test.
        seed: who they are.

    Raises:
        Misconfigured: SPAR is not here, or is not what was published.
    """
    wanted = people(part, seed)
    return cut([one for one in spar.on_one_wrist(series()) if one.person in wanted])


def people(part: Part, seed: int = 0) -> tuple[int, ...]:
    """Training and test persons of a seed, sorted."""
    dealt = np.random.default_rng(seed).permutation(spar.PEOPLE).tolist()
    return tuple(sorted(dealt[-TEST_PEOPLE:] if part == "test" else dealt[:-TEST_PEOPLE]))


def cut(series: Sequence[spar.Series]) -> DataSplit:
    """Every window of ``SAMPLES`` at ``STRIDE`` of these series, in their order."""
    starts = [range(0, len(one.values) - SAMPLES + 1, STRIDE) for one in series]
    parts = [
        one.values[at : at + SAMPLES].T for one, places_ in zip(series, starts, strict=True) for at in places_
    ]
    x_BCT = np.stack(parts) if parts else np.empty((0, _CHANNELS, SAMPLES), np.float32)
    counts = [len(places_) for places_ in starts]
    x = {"accelerometer": x_BCT[:, :3].copy(), "gyroscope": x_BCT[:, 3:].copy()}
    windows = complete(x, np.repeat(np.array([one.label for one in series], np.int64), counts))
    return DataSplit(windows, np.repeat(np.array([one.person for one in series], np.int64), counts))


def series() -> tuple[spar.Series, ...]:
    """All 140 series, from either form.

    Raises:
        Misconfigured: neither is, or a file is not what it should be.
    """
    try:
        path = spar.locate()
    except Misconfigured:
        try:
            packed = locations.file(FOLDER, FILE)
        except Misconfigured:
            packed = None
        if packed is None:
            raise
        return unpack(read_arrays(packed, "SPAR"), str(packed))
    return spar.load(path)


def unpack(arrays: Mapping[str, NDArray[Any]], where: str) -> tuple[spar.Series, ...]:
    """Series of the packed form.

    Raises:
        Misconfigured: a key is missing or does not fit; names ``where`` and the key.
    """
    check_form(arrays, where, _FORMS)
    x = arrays["x"]
    check_spans(arrays, where, "start", "length", len(x))
    return tuple(
        spar.Series(person, side, label, x[start : start + length])
        for person, side, label, start, length in zip(
            *(arrays[key].tolist() for key in _PER_SERIES), strict=True
        )
    )
