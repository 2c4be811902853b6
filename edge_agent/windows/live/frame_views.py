"""Images, vectors and texts as JSON values for people who look at a device. Pure.

Shapes: C channels, T points of a frame, H rows and W columns of an image, V = C * T.
"""

import base64
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.quality.frames import levels
from protocol.tasks.task import Modality

LONGEST: Final = 96
"""Rows or columns that are shown; of larger images every nth."""
MAX_VALUES: Final = 400
"""Of a vector; of more every nth is shown."""
_COLOURS: Final = 3


def frame_view(modality: Modality, values_V: NDArray[np.float32]) -> dict[str, Any]:
    """A frame, channel first.

    Returns:
        Of an image ``picture``: width, height, channels (1 or 3), data (base64, a byte a value, pixel by
        pixel, 0 to 255). Of a vector ``values``. Of a text ``ngrams``: their number.
    """
    match modality.kind:
        case "image":
            return {"picture": _picture(modality, values_V)}
        case "text":
            return {"ngrams": int(values_V.sum())}
        case _:
            step = -(-len(values_V) // MAX_VALUES)
            return {"values": [float(f"{value:.6g}") for value in values_V[::step].tolist()]}


def _picture(modality: Modality, values_V: NDArray[np.float32]) -> dict[str, Any]:
    rows, columns = modality.height or 1, modality.width or 1
    step = -(-max(rows, columns) // LONGEST)
    shown = _COLOURS if modality.channels >= _COLOURS else 1
    chw = values_V.reshape(modality.channels, rows, columns)[:shown, ::step, ::step]
    with np.errstate(invalid="ignore"):
        bytes_HWC = np.clip(np.rint(255 * levels(modality, chw)), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = bytes_HWC.shape
    data = base64.b64encode(np.ascontiguousarray(bytes_HWC).tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "data": data}
