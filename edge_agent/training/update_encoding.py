"""Encodes a local result as a frame to send and a quantization error to keep. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models import registry
from models.aggregation.update_norms import coarseness_of
from models.contract import LocalResult
from models.materials import Material
from protocol.errors import Reason, Refused
from protocol.frames.error_feedback import with_error_carry
from protocol.frames.frame import compressed, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded, encode
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
    tensors: dict[str, Encoded] = {}
    new_carry: Residuals = dict(carry)
    codec = Codec(task.uplink.codec)
    for name, tensor in result.tensors.items():
        if not np.isfinite(tensor).all():
            raise Refused(Reason.NON_FINITE, f"training gave a value that is not finite in tensor {name!r}")
        if name in result.codecs:
            tensors[name] = encode(tensor, result.codecs[name], coarseness=task.uplink.coarseness)
            continue
        before = carry.get(name) if task.uplink.error_carry else None
        if before is not None and before.shape != tensor.shape:
            before = None  # the network has changed since
        coarseness = coarseness_of(name, tensor, task.uplink.coarseness)
        tensors[name], new_carry[name] = with_error_carry(tensor, before, codec, coarseness=coarseness)
    frame = encode_frame(_header(offer, task, who, material, result), tensors)
    if codec is Codec.STEPS:  # a coordinator that asks for it reads compressed frames
        frame = compressed(frame)
    return frame, new_carry if task.uplink.error_carry else None


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
