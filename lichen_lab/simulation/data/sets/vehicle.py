"""SensIT Vehicle: two kinds of vehicle pass 23 sensor nodes, each with a microphone and a geophone.

M. F. Duarte, Y. H. Hu, Vehicle classification in distributed sensor networks, J. Parallel Distrib. Comput. 64
(2004). What is read is the training part as Ditto (T. Li et al., ICML 2021) used it, 1,860 of 43,695 samples:
50 acoustic features (spectral bins) and 50 seismic ones, standardised by node by its authors, so without a
unit. A node has 7 to 534 samples. That the acoustic ones come first is the usual description; the copy does
not say it.

Packed form, ``vehicle_sensit_ditto_train.npz``: ``x`` (B, 100) float32, ``y`` (B,) -1 or 1, ``node`` (B,)
from 0.
"""

from typing import Final

import numpy as np

from lichen_lab.simulation.data.access.packed import ArrayForm, read_packed
from lichen_lab.simulation.data.access.split import DataSplit, complete
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
    forms = {
        "y": ArrayForm(("B",), low=-1, high=1),
        "node": ArrayForm(("B",), low=0),
        "x": ArrayForm(("B", FEATURES * len(MODALITIES)), "numbers"),
    }
    arrays = read_packed(FOLDER, FILE, "SensIT Vehicle", forms)
    if not arrays["y"].all():
        raise Misconfigured(f"{FILE}: key 'y' must be -1 or 1")
    parts = np.split(arrays["x"].astype(np.float32), len(MODALITIES), axis=1)
    x = {m.name: np.ascontiguousarray(part[:, None, :]) for m, part in zip(MODALITIES, parts, strict=True)}
    windows = complete(x, (arrays["y"] > 0).astype(np.int64))
    return DataSplit(windows, arrays["node"].astype(np.int64))
