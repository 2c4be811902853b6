"""The samples of one modality in a recording: numbers, frames or texts. NumPy.

Shapes: n samples, V values of a sample (C channels; of a frame C * H * W, channel first).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.frame_sizes import size_mismatch, size_of
from models.data.text_ngrams import counts_of
from protocol.errors import Misconfigured
from protocol.tasks.kinds import KINDS
from protocol.tasks.task import Modality

_FRAME_AXES: Final = 4
_MOST_CHANNELS: Final = KINDS["image"].most_channels
_WIDEST_STREAM: Final = KINDS["stream"].most_channels


@dataclass(frozen=True, slots=True)
class Stream:
    """Samples of one modality in the order of time.

    Attributes:
        t: (n,) float64 s.
        values: (n, V) float32; frames of bytes stay bytes, a quarter of the memory. (n, 0) of texts.
        moved: samples whose time, in the file, is before that of the previous sample.
        size: (C, H, W) of frames, if the file says it.
        texts: of texts, one a sample; empty: they are numbers.
    """

    t: NDArray[np.float64]
    values: NDArray[np.float32] | NDArray[np.uint8]
    moved: int = 0
    size: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


def rows_of(modality: Modality | None, stream: Stream, part: slice) -> NDArray[np.float32]:
    """Some samples, as a batch has them: (k, V) float32. Texts need their modality."""
    if stream.texts and modality is not None:
        return counts_of(stream.texts[part], modality.channels)
    return np.asarray(stream.values[part], np.float32)


def columns_of(modality: Modality | None, stream: Stream) -> int:
    """V of the stream; 0 of texts whose buckets no task says, and of frames and texts of another modality."""
    columns = int(stream.values.shape[1])
    if modality is None:
        return columns
    if (stream.texts or stream.size) and misfit_of(modality, stream):
        return 0
    return modality.channels if stream.texts else columns


def misfit_of(modality: Modality, stream: Stream) -> str:
    """Why the samples are none of that modality, in words; empty if they are."""
    name, wanted = f"modality {modality.name!r}", f"the task says {size_of(modality)}"
    if stream.texts:
        return "" if modality.kind == "text" else f"{name} has texts, {wanted} (kind {modality.kind!r})"
    if stream.size and modality.kind != "image":
        return f"{name} has images, {wanted} (kind {modality.kind!r})"
    if stream.size and stream.size != (modality.channels, modality.height, modality.width):
        channels, height, width = stream.size
        return f"{name} has images of {height} x {width} pixels with {channels} channels, {wanted}"
    if stream.values.shape[1] != modality.sample_values:
        return size_mismatch(modality, stream.values.shape[1])
    return ""


def of_arrays(
    path: Path, name: str, t: NDArray[np.generic], values: NDArray[np.generic], size: tuple[int, ...] = ()
) -> Stream:
    """Check and sort one stream by time.

    Args:
        path: of the recording, for messages.
        name: of the modality.
        t: (n,) seconds.
        values: (n,), (n, V), or (n, C, H, W) of images.
        size: (C, H, W), if the file says it beside the values.

    Raises:
        Misconfigured: they are no numbers, or of other shapes.
    """
    if t.dtype.kind not in "fiu" or values.dtype.kind not in "fiu":
        raise Misconfigured(f"recording {path}: '{name}' holds {t.dtype}/{values.dtype}, not numbers")
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == _FRAME_AXES:
        size = values.shape[1:]
        _require_channels_first(path, name, size)
        values = values.reshape(len(values), math.prod(size))
    if t.ndim != 1 or values.ndim != 2 or len(t) != len(values):  # noqa: PLR2004 - (n, V)
        raise Misconfigured(
            f"recording {path}: '{name}/t' {t.shape} and '{name}/values' {values.shape} should be (n,) and "
            "(n, C), of images (n, C, H, W), with C = 1 for grey ones"
        )
    if size and (len(size) != _FRAME_AXES - 1 or min(size) < 1 or math.prod(size) != values.shape[1]):
        raise Misconfigured(
            f"recording {path}: '{name}' has frames {size}, (C, H, W) is needed, and '{name}/values' has "
            f"{values.shape[1]} values a frame"
        )
    order, times, moved = _ordered(path, name, t)
    bytes_stay = values.dtype == np.uint8 and values.shape[1] > _WIDEST_STREAM
    by_time = values[order] if moved else values
    with np.errstate(
        over="ignore"
    ):  # beyond float32 is infinite, and no sensor reports that: quality finds it
        sorted_values: Any = np.ascontiguousarray(by_time, None if bytes_stay else np.float32)
    return Stream(times, sorted_values, moved, tuple(int(axis) for axis in size))


def of_texts(path: Path, name: str, t: NDArray[np.generic], texts: Sequence[str]) -> Stream:
    """Texts by time; an empty one is no sample.

    Raises:
        Misconfigured: there is not one time for each text, or a time is none.
    """
    if t.dtype.kind not in "fiu" or t.shape != (len(texts),):
        raise Misconfigured(
            f"recording {path}: '{name}' has {len(texts)} texts and times {t.dtype} {t.shape}; each needs one"
        )
    there = np.array([bool(text.strip()) for text in texts], np.bool_)
    order, times, moved = _ordered(path, name, t[there])
    some = [text for text in texts if text.strip()]
    return Stream(
        times, np.zeros((len(some), 0), np.float32), moved, texts=tuple(some[at] for at in order.tolist())
    )


def _require_channels_first(path: Path, name: str, size: tuple[int, ...]) -> None:
    if size[0] > _MOST_CHANNELS >= size[2]:
        raise Misconfigured(
            f"recording {path}: '{name}/values' has frames {size}, their channels last; store them first: "
            "numpy.moveaxis(values, -1, 1)"
        )


def _ordered(
    path: Path, name: str, t: NDArray[np.generic]
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    times = t.astype(np.float64)
    if not np.isfinite(times).all():
        raise Misconfigured(f"recording {path}: '{name}/t' holds a time that is not finite")
    order = np.argsort(times, kind="stable")
    return order, times[order], int((np.diff(times) < 0).sum())
