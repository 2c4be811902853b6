"""Encodes a local result as a frame to send and a quantization error to keep. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models import registry
from models.aggregation.update_norms import coarseness_of
from models.contract import LocalResult
from models.materials import Material
from models.privacy.adaptive_clip import WITHIN
from models.privacy.clipping import TOLERANCE, norm_of, within
from protocol.errors import Reason, Refused
from protocol.frames.error_feedback import all_with_error_carry
from protocol.frames.fixed_point import all_rounded, rounded
from protocol.frames.frame import compressed, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded, decode, encode, encode_steps
from protocol.frames.together import groups_of, joined
from protocol.messages import Offer
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task

Residuals = dict[str, NDArray[np.float32]]
_SHORTER: Final = (TOLERANCE, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5)
"""Of a codec with steps of powers of two, half the length is decoded as half of what was decoded."""


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
        task: its uplink gives the codec, with error carry, of tensors that the method gave none. With
            ``[privacy]`` the update weighs 1, and its decoded norm is within the clip.
        who: the device's name, and the task's modalities that it has.
        material: training data.
        result: the worker's.
        carry: quantization errors of earlier rounds, by tensor.

    Returns:
        The frame, and the new carry (tensors that were not sent keep theirs); None if the task has none.

    Raises:
        Refused: a tensor is not finite; the detail names it. Or its codec cannot keep it within the clip.
    """
    _check_finite(result.tensors)
    carried = {name: tensor for name, tensor in result.tensors.items() if name not in result.codecs}
    before = {
        name: carry[name]
        for name, tensor in carried.items()
        # another shape: the network has changed since
        if task.uplink.error_carry and name in carry and carry[name].shape == tensor.shape
    }
    secure = task.secure_aggregation
    if secure is not None:
        result = replace(result, weight=min(result.weight, secure.heaviest))
    if task.privacy is None:
        tensors, left = _encoded(task, result, result.tensors, before)
    else:
        adapts = task.privacy.adaptive_clip is not None
        clip = offer.clip if adapts and offer.clip is not None else task.privacy.clip
        tensors, left, within_clip = _clipped(task, clip, result, before)
        bit = {WITHIN: float(within_clip)} if adapts else {}
        result = replace(result, weight=1, metrics={**result.metrics, **bit})
    frame = encode_frame(_header(offer, task, who, material, result), tensors)
    if Codec(task.uplink.codec) is Codec.STEPS:  # a coordinator that asks for it reads compressed frames
        frame = compressed(frame)
    return frame, {**carry, **left} if task.uplink.error_carry else None


def _encoded(
    task: Task, result: LocalResult, values: Residuals, before: Residuals
) -> tuple[dict[str, Encoded], Residuals]:
    """A result's tensors with these values, encoded, and the error of those without a codec of their own."""
    rest = {name: tensor for name, tensor in values.items() if name not in result.codecs}
    if task.secure_aggregation is not None:
        return _on_grid(task.secure_aggregation, result, values, before)
    if task.uplink.fraction_bits is not None:
        made, left = all_rounded(rest, before, task.uplink.fraction_bits, task.uplink.level)
        own = {name: encode(x, result.codecs[name]) for name, x in values.items() if name not in rest}
        return {**_in_steps(made, task.uplink.fraction_bits), **own}, left
    tensors, left = all_with_error_carry(
        rest,
        before,
        Codec(task.uplink.codec),
        lambda name: coarseness_of(name, rest[name], task.uplink.coarseness),
    )
    for name in values.keys() - rest.keys():
        tensors[name] = encode(values[name], result.codecs[name], coarseness=task.uplink.coarseness)
    return tensors, left


def _on_grid(
    options: SecureAggregation, result: LocalResult, values: Residuals, before: Residuals
) -> tuple[dict[str, Encoded], Residuals]:
    """All tensors rounded to the steps of a secure round; what has a codec of its own has no error carry."""
    rest = {name: tensor for name, tensor in values.items() if name not in result.codecs}
    made, left = all_rounded(rest, before, options.fraction_bits, options.level)
    for name in values.keys() - rest.keys():
        largest = float(np.abs(values[name]).max(initial=0.0))
        if largest > options.level * 2.0**-options.fraction_bits:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"tensor {name!r} has a value of magnitude {largest:.6g}; secure_aggregation.bound is "
                f"{options.bound:g}, and this tensor cannot be cut",
            )
        made[name] = rounded(values[name], options.fraction_bits, options.level)
    return _in_steps(made, options.fraction_bits), left


def _in_steps(tensors: Residuals, fraction_bits: int) -> dict[str, Encoded]:
    """Rounded tensors, exactly."""
    return {name: encode_steps(tensor, 2.0**-fraction_bits) for name, tensor in tensors.items()}


def _clipped(
    task: Task, clip: float, result: LocalResult, before: Residuals
) -> tuple[dict[str, Encoded], Residuals, bool]:
    """The same of tensors whose norm, as they are decoded, is at most ``clip``; and whether it was before.

    The error of earlier rounds is added before: the sum is clipped, and what that cuts off is not carried on.
    Quantization can lengthen it again; then it is scaled once more, by as much.
    """
    total = {
        name: tensor + before[name] if name in before else tensor for name, tensor in result.tensors.items()
    }
    length = norm_of(total)
    limit = min(clip, length)
    for shorter in _SHORTER:
        tensors, left = _encoded(task, result, within(total, limit), {})
        norm = norm_of({name: decode(one) for name, one in tensors.items()})
        if norm <= clip:
            return tensors, left, length <= clip
        limit *= clip / norm * (1 - shorter)
    raise Refused(
        Reason.OUT_OF_BOUNDS,
        f"uplink.codec = {task.uplink.codec!r} does not keep the update within privacy.clip = {clip:g}; "
        'codec = "float32" does',
    )


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
    quality = dict(told.quality)
    if task.local_privacy is not None:  # it is measured on what windows hold, and has no noise
        quality = dict.fromkeys(quality, 1.0)
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
        quality=quality,
        # an absurd loss may overflow where no tensor does
        metrics={name: value for name, value in result.metrics.items() if np.isfinite(value)},
        extra=result.extra,
    )
