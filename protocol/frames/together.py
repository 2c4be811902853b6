"""Groups of small tensors, for operations that cost more by call than by element.

A network has dozens of vectors of few elements. An operation on all elements of a group takes far less time
than one on each tensor. Groups are bounded, and so are temporaries.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from protocol.frames import uniform_quantizer
from protocol.frames.tensors import BITS, Codec, Encoded
from protocol.frames.uniform_quantizer import F4, FloatArray

Tensors = dict[str, FloatArray]
GROUP_ELEMENTS: Final = 1 << 16
"""Limit of a group; a larger tensor is a group of its own."""


def groups(sizes: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Names in the given order, in groups of at most :data:`GROUP_ELEMENTS` elements.

    Args:
        sizes: names of tensors, and their elements.
    """
    names: list[str] = []
    total = 0
    for name, size in sizes:
        if names and total + size > GROUP_ELEMENTS:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def groups_of(tensors: Mapping[str, FloatArray]) -> Iterator[list[str]]:
    """:func:`groups` of these tensors."""
    return groups((name, tensor.size) for name, tensor in tensors.items())


def joined(tensors: Mapping[str, FloatArray], names: Iterable[str]) -> FloatArray:
    """The elements of these tensors, one after the other, each in C order."""
    return np.concatenate([tensors[name] for name in names], axis=None, dtype=np.float32)


def split(values_N: FloatArray, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """The inverse of :func:`joined`, as views: tensors of these shapes, in that order."""
    tensors, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        tensors[name] = values_N[start:end].reshape(shape)
        start = end
    return tensors


def encode_each(
    values_N: FloatArray, shapes: Mapping[str, tuple[int, ...]], codec: Codec
) -> tuple[dict[str, Encoded], FloatArray]:
    """Write tensors by a uniform quantizer, one range each, as :func:`protocol.frames.tensors.encode`.

    Args:
        values_N: the elements of all, one tensor after the other.
        shapes: by name, in that order; none is empty.
        codec: ``int8``, ``int4`` or ``int2``.

    Returns:
        The tensors by name, and all elements as they are decoded.

    Raises:
        ValueError: an element is not finite.
    """
    if not np.isfinite(values_N).all():
        raise ValueError(f"one of the tensors {', '.join(shapes)} has a NaN or an infinity")
    sizes = [math.prod(shape) for shape in shapes.values()]
    data, low, step, decoded_N = uniform_quantizer.quantize_each(values_N, sizes, BITS[codec])
    encoded = {
        name: Encoded(codec, shape, data[i], low[4 * i : 4 * i + 4], step[4 * i : 4 * i + 4], 1)
        for i, (name, shape) in enumerate(shapes.items())
    }
    return encoded, decoded_N


def decode_each(tensors: Mapping[str, Encoded]) -> dict[str, FloatArray]:
    """Read those tensors that can be read together: small ones of ``int8`` with one range.

    Others are left out, and so are wrong ones: :func:`protocol.frames.tensors.decode` says what is wrong.
    """
    together = {name: tensor for name, tensor in tensors.items() if _is_plain_int8(tensor)}
    decoded: dict[str, FloatArray] = {}
    for names in groups((name, len(tensor.data)) for name, tensor in together.items()):
        some = {name: together[name] for name in names}
        values_N = uniform_quantizer.dequantize_each(
            b"".join(tensor.data for tensor in some.values()),
            b"".join(tensor.low for tensor in some.values()),
            b"".join(tensor.step for tensor in some.values()),
            [len(tensor.data) for tensor in some.values()],
        )
        if values_N is not None:
            decoded |= split(values_N, {name: tensor.shape for name, tensor in some.items()})
    return decoded


def _is_plain_int8(tensor: Encoded) -> bool:
    return (
        tensor.codec is Codec.INT8
        and len(tensor.low) == len(tensor.step) == F4.itemsize
        and 0 < len(tensor.data) == tensor.size <= GROUP_ELEMENTS
    )
