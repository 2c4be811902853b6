"""Converts named tensors between blobs, files, deltas and torch modules. Torch-free.

A name is a path such as ``encoder/gyroscope/lstm.weight_ih_l0``; :func:`models.contract.blob_of` gives its
blob.
"""

import io
import math
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from models import npz
from models.contract import Blobs, FloatArray, Tensors, blob_of
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.together import groups_of, joined

NEVER_NEGATIVE: Final = "running_var"
"""Suffix of the names of tensors whose values are 0 or above."""
_MEAN: Final = "running_mean"
_OF_A_NORM: Final = ("weight", "bias", _MEAN, NEVER_NEGATIVE)
"""The tensors of a BatchNorm, by the ends of their names."""


def flatten(blobs: Blobs) -> Tensors:
    """All tensors of a global state by full name, sorted."""
    flat = {name: tensor for tensors in blobs.values() for name, tensor in tensors.items()}
    return {name: flat[name] for name in sorted(flat)}


def batch_norms(names: Iterable[str]) -> frozenset[str]:
    """The names among these that are BatchNorm's: statistics, and the weight and bias beside them.

    A norm without running statistics is not recognised.
    """
    every = frozenset(names)
    norms = {name.removesuffix(_MEAN) for name in every if name.endswith(_MEAN)}
    return frozenset(name for norm in norms for part in _OF_A_NORM if (name := f"{norm}{part}") in every)


def unflatten(tensors: Mapping[str, FloatArray]) -> Blobs:
    """Blobs of tensors by full name, sorted."""
    blobs: Blobs = {}
    for name in sorted(tensors):
        blobs.setdefault(blob_of(name), {})[name] = tensors[name]
    return blobs


def blobs_of(tensors: Iterable[str]) -> tuple[str, ...]:
    """Names of the blobs of these tensors, sorted."""
    return tuple(sorted({blob_of(name) for name in tensors}))


def shapes(tensors: Mapping[str, FloatArray]) -> dict[str, tuple[int, ...]]:
    """Name -> shape."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def difference(new: Mapping[str, FloatArray], base: Mapping[str, FloatArray]) -> Tensors:
    """``new - base`` for every tensor of ``new``."""
    return {name: np.subtract(tensor, base[name], dtype=np.float32) for name, tensor in new.items()}


def apply(base: Mapping[str, FloatArray], delta: Mapping[str, FloatArray]) -> Tensors:
    """``base + delta``; a tensor without delta stays. A running variance never falls below zero."""
    new = dict(base)
    for name, change in delta.items():
        moved = np.add(base[name], change, dtype=np.float32)
        new[name] = np.maximum(moved, np.float32(0)) if name.endswith(NEVER_NEGATIVE) else moved
    return new


def check_tensor(name: str, tensor: FloatArray, shape: tuple[int, ...], bound: float) -> None:
    """Check a peer's tensor against the model.

    Raises:
        Refused: WRONG_TENSORS (shape), NON_FINITE or OUT_OF_BOUNDS (beyond ``bound``); the detail names the
            tensor.
    """
    if tensor.shape != shape:
        raise Refused(
            Reason.WRONG_TENSORS, f"tensor {name!r} has shape {tensor.shape}, the model's is {shape}"
        )
    if tensor.size == 0:
        return
    # min and max propagate NaN and need no temporary of the tensor's size
    low, high = float(tensor.min()), float(tensor.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise Refused(Reason.NON_FINITE, f"tensor {name!r} holds NaN or infinity")
    if max(-low, high) > bound:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"tensor {name!r} reaches {max(-low, high):.6g}, at most {bound:.6g} is taken",
        )


def check_tensors(
    tensors: Mapping[str, FloatArray], shapes: Mapping[str, tuple[int, ...]], bound: float
) -> None:
    """:func:`check_tensor` of each; the values of small ones are looked at together.

    Args:
        tensors: of a peer.
        shapes: of the model's tensors; has all names of ``tensors``.
        bound: of all values.

    Raises:
        Refused: as :func:`check_tensor`.
    """
    for names in groups_of(tensors):
        if len(names) > 1 and all(tensors[name].shape == shapes[name] for name in names):
            values_N = joined(tensors, names)
            # false of NaN too
            if values_N.size == 0 or (-bound <= values_N.min() and values_N.max() <= bound):
                continue
        for name in names:
            check_tensor(name, tensors[name], shapes[name], bound)


def check_names(names: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Check that tensor names are exactly those expected.

    Raises:
        Refused: WRONG_TENSORS; the detail names the first missing or unknown one.
    """
    names, expected = set(names), set(expected)
    for name in sorted(expected - names):
        raise Refused(Reason.WRONG_TENSORS, f"{what}: tensor {name!r} is missing")
    for name in sorted(names - expected):
        raise Refused(Reason.WRONG_TENSORS, f"{what}: tensor {name!r} is not in the model")


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as npz, atomically; equal arrays give equal bytes (zip times are fixed)."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        _pack_npz(file, arrays)
    os.replace(part, path)  # noqa: PTH105 - Path.replace is the same call; os.replace says that it is atomic


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The content of :func:`write_npz`, for durable writes."""
    buffer = io.BytesIO()
    _pack_npz(buffer, arrays)
    return buffer.getvalue()


def _pack_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for key in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[key]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), buffer.getbuffer())


def read_arrays(path: Path, what: str, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz, or ``only`` some; refuses pickled objects.

    Raises:
        Misconfigured: no such file, or no npz; the message names it and ``what`` it should be.
    """
    try:
        return npz.read(path, only=only)
    except (OSError, npz.BadNpz) as error:
        raise Misconfigured(f"{path}: cannot be read as {what} (npz): {error}") from None


def read_npz(path: Path, only: Collection[str] | None = None) -> Tensors:
    """Read named float32 tensors: all, or the existing ones of ``only``.

    Raises:
        Misconfigured: no such file, or not an npz; the message names it.
    """
    arrays = read_arrays(path, "named tensors", only)
    with np.errstate(over="ignore", invalid="ignore"):  # not finite: refused where it is used
        return {name: _numbers(path, name, array) for name, array in arrays.items()}


def _numbers(path: Path, name: str, array: NDArray[Any]) -> FloatArray:
    if array.dtype.kind not in "biuf":
        raise Misconfigured(f"{path}: key {name!r} holds {array.dtype}, not numbers")
    return np.asarray(array, np.float32)
