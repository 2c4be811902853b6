"""The form of a modality in a recording: its kind, and an image's size. Also how long an example lasts.

npz: ``<modality>/kind`` (text), ``<modality>/shape`` (channels, height, width) of images, and ``example_s``:
each example takes so many seconds from a multiple of it on. Readers of recordings need none of them; a first
task is made from them. Without them, sound is known by its rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from models import npz
from protocol.tasks.kinds import ModalityKind

_KINDS: Final[Mapping[str, ModalityKind]] = {kind: kind for kind in get_args(ModalityKind)}
_EXAMPLE: Final = "example_s"
_AXES: Final = 3


@dataclass(frozen=True)
class Form:
    """Of one modality: ``shape`` is (channels, height, width) of an image."""

    kind: ModalityKind = "stream"
    shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class RecordingForms:
    """Of one recording; ``example_s`` is None if it is no series of examples."""

    modalities: Mapping[str, Form] = field(default_factory=dict)
    example_s: float | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Their arrays in an npz."""
        found: dict[str, NDArray[Any]] = {}
        for name, form in self.modalities.items():
            if form.kind != "stream":
                found[f"{name}/kind"] = np.array([form.kind])
            if form.shape is not None:
                found[f"{name}/shape"] = np.array(form.shape, np.int64)
        return found if self.example_s is None else found | {_EXAMPLE: np.array([self.example_s])}


def read(path: Path) -> RecordingForms:
    """The forms in a recording; what is not in it, or not valid, is left out."""
    if path.suffix != ".npz":
        return RecordingForms()
    try:
        names = npz.names(path)
        marked = [name for name in names if name.endswith(("/kind", "/shape")) or name == _EXAMPLE]
        arrays = npz.read(path, only=marked)
    except (OSError, npz.BadNpz):
        return RecordingForms()
    modalities = {}
    for name, array in arrays.items():
        modality, _, what = name.partition("/")
        kind = _KINDS.get(str(array.ravel()[0])) if what == "kind" and array.size else None
        if kind is not None:
            modalities[modality] = Form(kind, _shape(arrays.get(f"{modality}/shape")))
    return RecordingForms(modalities, _seconds(arrays.get(_EXAMPLE)))


def _shape(array: NDArray[Any] | None) -> tuple[int, int, int] | None:
    if array is None or array.shape != (_AXES,) or array.dtype.kind not in "iu" or (array < 1).any():
        return None
    channels, height, width = (int(size) for size in array)
    return channels, height, width


def _seconds(array: NDArray[Any] | None) -> float | None:
    if array is None or array.size != 1 or array.dtype.kind not in "fiu":
        return None
    seconds = float(array.ravel()[0])
    return seconds if 0 < seconds < np.inf else None
