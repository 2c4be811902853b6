"""What was published as UCI-HAR: digests of its content, and the packed form it is kept in.

A digest is of the numbers, not of a file: the same windows have it whichever archive, folder or packing they
come in. Both were computed from a copy whose values were compared with a second, independent one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import uci_har
from models.tensors import npz_bytes
from protocol.errors import Reason, Refused
from runtime.storage.files import write_atomic

Arrays = Mapping[str, NDArray[Any]]
PARTS: Final[tuple[Part, ...]] = ("train", "test")
DIGESTS: Final[dict[Part, str]] = {
    "train": "84d1ae159a21109d0ab312f2aa85c631a7cf110e82bb9b897a34eb15dca2c1bf",
    "test": "00236c0078baf390c3d3b97c2d1ed26101957158167fdc235760b430256388fd",
}
_CLASS_NAMES: Final = tuple(label.upper().replace(" ", "_") for label in uci_har.LABELS)


def digest(arrays: Arrays) -> str:
    """SHA-256 over ``x`` (float32, little-endian, row by row), then ``y``, then ``subject`` (a byte each)."""
    content = hashlib.sha256(arrays["x"].astype("<f4", order="C", copy=False).data)
    content.update(arrays["y"].astype(np.int8).data)
    content.update(arrays["subject"].astype(np.int8).data)
    return content.hexdigest()


def verify(parts: Mapping[Part, Arrays], where: str) -> None:
    """Compare both parts with what was published.

    Raises:
        Refused: WRONG_DIGEST; the detail names ``where``, the part and both digests.
    """
    for part in PARTS:
        found = digest(parts[part])
        if found != DIGESTS[part]:
            raise Refused(
                Reason.WRONG_DIGEST,
                f"{where}: the {part} windows ({len(parts[part]['y'])}) are not those that were published: "
                f"SHA-256 of the content is {found}, not {DIGESTS[part]}; nothing was kept",
            )


def write(folder: Path, parts: Mapping[Part, Arrays]) -> None:
    """Write both parts in the packed form into a folder.

    Raises:
        Misconfigured, Transient: the folder is closed to us; the disk is full.
    """
    for part in PARTS:
        arrays = parts[part]
        packed: dict[str, NDArray[Any]] = {
            "x": np.ascontiguousarray(arrays["x"], np.float32),
            "y": arrays["y"].astype(np.int8),
            "subject": arrays["subject"].astype(np.int8),
            "continues_previous": _continues(arrays),
            "channels": np.array(uci_har.CHANNELS),
            "class_names": np.array(_CLASS_NAMES),
        }
        write_atomic(folder / uci_har.file_name(part), npz_bytes(packed))


def _continues(arrays: Arrays) -> NDArray[np.bool_]:
    """(B,): the window begins with what the one before it ends with, so that runs can be joined again."""
    x, half = arrays["x"], uci_har.SAMPLES // 2
    joined = np.zeros(len(x), np.bool_)
    joined[1:] = (x[1:, :, :half] == x[:-1, :, half:]).all(axis=(1, 2))
    return joined
