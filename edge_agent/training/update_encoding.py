"""Encodes a local result as a frame to send and a quantization error to keep. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models import registry
from models.aggregation.update_norms import coarseness_of
from models.contract import LocalResult
from models.materials import Material
from protocol.errors import Reason, Refused
from protocol.frames.error_feedback import all_with_error_carry
from protocol.frames.frame import compressed, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.frames.together import groups_of, joined
from protocol.messages import Offer
from protocol.tasks.task import Task

Residuals = dict[str, NDArray[np.float32]]


def encode_update(
    offer: Offer,
    task: Task,
    who: tuple[str, Sequence[str]],
    material: Material,
    result: LocalResult,
    *,
    carry: Mapping[str, NDArray[np.float32]],
) -> tuple[bytes, Residuals | None]:
    """Quantize and frame an update.

    Args:
        offer: names round and base.
        task: its uplink gives the codec, with error carry, of tensors that the method gave none.
        who: the device's name, and the task's modalities that it has.
        material: training data.
        result: the worker's.
        carry: quantization errors of earlier rounds, by tensor.

    Returns:
        The frame, and the new carry (tensors that were not sent keep theirs); None if the task has none.

    Raises:
        Refused: a tensor is not finite; the detail names it.
    """
    _check_finite(result.tensors)
    codec = Codec(task.uplink.codec)
    carried = {name: tensor for name, tensor in result.tensors.items() if name not in result.codecs}
    before = {
        name: carry[name]
        for name, tensor in carried.items()
        # another shape: the network has changed since
        if task.uplink.error_carry and name in carry and carry[name].shape == tensor.shape
    }
    tensors, left = all_with_error_carry(
        carried, before, codec, lambda name: coarseness_of(name, carried[name], task.uplink.coarseness)
    )
    for name in result.tensors.keys() - carried.keys():
        tensor, own = result.tensors[name], result.codecs[name]
        tensors[name] = encode(tensor, own, coarseness=task.uplink.coarseness)
    frame = encode_frame(_header(offer, task, who, material, result), tensors)
    if codec is Codec.STEPS:  # a coordinator that asks for it reads compressed frames
        frame = compressed(frame)
    return frame, {**carry, **left} if task.uplink.error_carry else None


def _check_finite(tensors: Mapping[str, NDArray[np.float32]]) -> None:
    for names in groups_of(tensors):
        if not np.isfinite(joined(tensors, names)).all():
            wrong = next(name for name in names if not np.isfinite(tensors[name]).all())
            raise Refused(Reason.NON_FINITE, f"training gave a value that is not finite in tensor {wrong!r}")


def _header(
    offer: Offer, task: Task, who: tuple[str, Sequence[str]], material: Material, result: LocalResult
) -> UpdateHeader:
    device, modalities = who
    told = registry.method(task.method).kind.told(material, task, modalities)
    return UpdateHeader(
        task=task.name,
        method=task.method,
        device=device,
        round=offer.round,
        base=offer.base,
        weight=result.weight,
        samples=told.samples,
        counts=dict(told.counts),
        missing=dict(told.missing),
        quality=dict(told.quality),
        # an absurd loss may overflow where no tensor does
        metrics={name: value for name, value in result.metrics.items() if np.isfinite(value)},
        extra=result.extra,
    )
