"""SensIT Vehicle: two kinds of vehicle pass 23 sensor nodes, each with a microphone and a geophone.

M. F. Duarte, Y. H. Hu, Vehicle classification in distributed sensor networks, J. Parallel Distrib. Comput. 64
(2004). What is read is the training part as Ditto (T. Li et al., ICML 2021) used it, 1,860 of 43,695 samples:
50 acoustic features (spectral bins) and 50 seismic ones, standardised by node by its authors, so without a
unit. A node has 7 to 534 samples. That the acoustic ones come first is the usual description; the copy does
not say it.

Packed form, ``vehicle_sensit_ditto_train.npz``: ``x`` (B, 100) float32, ``y`` (B,) -1 or 1, ``node`` (B,)
from 0.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.split import DataSplit
from models.contract import WindowSet
from models.tensors import read_arrays
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality

FOLDER: Final = "vehicle_sensit"
FILE: Final = "vehicle_sensit_ditto_train.npz"
LABELS: Final = ("AAV", "DW")
FEATURES: Final = 50
"""Of each sensor. They are a row of neighbouring bins, and stand where other sensors have time."""
WINDOW_S: Final = 1.0
MODALITIES: Final = tuple(
    Modality(name=name, channels=1, rate_hz=FEATURES / WINDOW_S) for name in ("acoustic", "seismic")
)


def load() -> DataSplit:
    """All samples in the packed order; ``person_B`` is the node.

    Returns:
        ``acoustic`` and ``seismic``, each ``x_BCT`` of 1 channel and 50 features; all present.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    path = locations.file(FOLDER, FILE)
    arrays = read_arrays(path, "SensIT Vehicle")
    _check(arrays, str(path))
    count = len(arrays["y"])
    parts = np.split(arrays["x"].astype(np.float32), len(MODALITIES), axis=1)
    windows = WindowSet(
        x={m.name: np.ascontiguousarray(x[:, None, :]) for m, x in zip(MODALITIES, parts, strict=True)},
        present_BM=np.ones((count, len(MODALITIES)), np.bool_),
        quality_BM=np.ones((count, len(MODALITIES)), np.float32),
        y_B=(arrays["y"] > 0).astype(np.int64),
    )
    return DataSplit(windows, arrays["node"].astype(np.int64))


def _check(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    for key in ("x", "y", "node"):
        if key not in arrays:
            raise Misconfigured(f"{where}: key {key!r} is not in it; docs/data.md has the layout")
    x, y, node = arrays["x"], arrays["y"], arrays["node"]
    wanted = (len(y), FEATURES * len(MODALITIES))
    if x.shape != wanted or x.dtype.kind != "f" or not np.isfinite(x).all():
        raise Misconfigured(
            f"{where}: key 'x' must be finite numbers of shape {wanted}, it is {x.dtype} of shape {x.shape}"
        )
    if y.ndim != 1 or not np.isin(y, (-1, 1)).all():
        raise Misconfigured(f"{where}: key 'y' must be -1 or 1, on one axis")
    if node.shape != y.shape or node.dtype.kind not in "iu" or (node < 0).any():
        raise Misconfigured(f"{where}: key 'node' must be {len(y)} integers from 0")
