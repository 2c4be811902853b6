"""From the exact values of a version to those that devices hold, and the shortest ways to them. Pure.

With x the exact values, p those that devices hold, and Q rounding to whole steps:

    p <- p + Q(x - p)

x goes on without p's rounding error: the next fold adds the mean of the devices' changes, which are relative
to p, to x. So what rounding left out of one version is in the next one (error feedback), and p follows x.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.aggregation.update_norms import STATISTICS, coarseness_of, part_of
from models.contract import FloatArray, Tensors
from protocol.frames import steps
from protocol.frames.differences import packed_difference
from protocol.frames.frame import Limits, encode_frame, open_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, Encoded, decode, encode, encode_steps
from protocol.messages import MAX_BLOB_BYTES

OWN_LIMITS: Final = Limits(
    max_bytes=MAX_BLOB_BYTES, max_elements=MAX_BLOB_BYTES // 4, max_total_elements=MAX_BLOB_BYTES // 4
)
"""Limits of frames that this coordinator wrote."""
_FEW: Final = 16
"""Elements of a tensor that is sent exactly: its step and signs would save little."""
_FIRST: Final = 0.125
"""Coarseness of values without a parent: they are no changes, and an error of a sixteenth is within what
random first values differ by."""


@dataclass(frozen=True)
class PublishedBlob:
    """A blob as devices hold it.

    Attributes:
        frame: in full.
        difference: the packed way from the parent's; None: there is none, or nothing changed.
    """

    frame: bytes
    difference: bytes | None


def blob_frame(name: str, tensors: Tensors, codecs: Mapping[str, Codec]) -> bytes:
    """Encode a blob.

    Args:
        name: of the blob.
        tensors: its content.
        codecs: by the last part of a tensor's name (``MethodSpec.codecs``); others are float32.
    """
    encoded = {tensor: encode(value, _codec(tensor, codecs)) for tensor, value in tensors.items()}
    return encode_frame(BlobHeader(name=name), encoded)


def published(
    name: str, exact: Tensors, parent: bytes | None, codecs: Mapping[str, Codec], coarseness: float
) -> PublishedBlob:
    """Round a blob that devices get by differences.

    Args:
        name: of the blob.
        exact: its values.
        parent: the frame that devices hold of the version before; None: there is none.
        codecs: as in :func:`blob_frame`; tensors that it names are not rounded.
        coarseness: of matrices; see :func:`models.aggregation.update_norms.coarseness_of`.
    """
    held = {} if parent is None else open_frame(parent, BlobHeader, OWN_LIMITS)[1]
    fits = held.keys() == exact.keys() and all(held[key].shape == exact[key].shape for key in exact)
    if parent is None or not fits:
        frame = encode_frame(
            BlobHeader(name=name), {key: _first(key, values, codecs) for key, values in exact.items()}
        )
        return PublishedBlob(frame, None)
    change = {
        key: found
        for key, values in exact.items()
        if (found := _change(key, values, held[key], codecs, coarseness)) is not None
    }
    if not change:
        return PublishedBlob(parent, None)
    difference, frame = packed_difference(name, parent, change, OWN_LIMITS)
    return PublishedBlob(frame, difference)


def _first(name: str, values: FloatArray, codecs: Mapping[str, Codec]) -> Encoded:
    """A tensor without a parent."""
    if not _is_rounded(name, values, codecs):
        return encode(values, _codec(name, codecs))
    return encode(_rounded(values, _FIRST)[0], Codec.FLOAT32)


def _change(
    name: str, values: FloatArray, held: Encoded, codecs: Mapping[str, Codec], coarseness: float
) -> Encoded | None:
    """What devices add to a tensor, or replace it by; None: it stays."""
    if not _is_rounded(name, values, codecs) or held.codec is not Codec.FLOAT32:
        encoded = encode(values, _codec(name, codecs))
        return None if encoded == held else encoded
    change = np.subtract(values, decode(held), dtype=np.float32)
    rounded, step = _rounded(change, coarseness_of(name, values, coarseness))
    return encode_steps(rounded, step) if rounded.any() else None


def _rounded(values: FloatArray, coarseness: float) -> tuple[FloatArray, float]:
    """Values as whole steps, and the step."""
    step = steps.step_for(values, coarseness)
    return steps.values_of(steps.levels_of(values, step), step).reshape(values.shape), step


def _is_rounded(name: str, values: FloatArray, codecs: Mapping[str, Codec]) -> bool:
    """Whether a tensor is rounded. Running statistics are not.

    One channel's variance moves by much more than another's: off by the step of a large one, a small one
    makes a useless model.
    """
    if name.rsplit("/", 1)[-1] in codecs or part_of(name).endswith(STATISTICS):
        return False
    return values.size >= _FEW and bool(np.isfinite(values).all())


def _codec(name: str, codecs: Mapping[str, Codec]) -> Codec:
    return codecs.get(name.rsplit("/", 1)[-1], Codec.FLOAT32)
