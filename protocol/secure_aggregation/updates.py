"""The frame of a masked update: an ordinary update whose header tells nothing of its device's data. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from protocol.frames.frame import encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded
from protocol.secure_aggregation.attempt import Attempt

MASKED: Final = "masked"
"""Name of the only tensor: the packed vector, as bytes."""
ATTEMPT: Final = "attempt"
"""Key of the header's ``extra``: the attempt's digest, hexadecimal."""
ROUTE: Final = "route"
"""Key of the header's ``extra``, of a routed method alone: what determines the device's bundle."""


def masked_frame(
    attempt: Attempt, method: str, device: str, packed: bytes, route: Mapping[str, Any] | None = None
) -> bytes:
    """The update of a device in an attempt.

    Args:
        attempt: of the round.
        method: of the task.
        device: the sender.
        packed: its vector with all masks.
        route: of a routed method, what determines the device's bundle.
    """
    header = UpdateHeader(
        task=attempt.task,
        method=method,
        device=device,
        round=attempt.round,
        base=attempt.base,
        samples=0,
        counts={},
        missing={},
        quality={},
        extra={ATTEMPT: attempt.digest.hex(), **({} if route is None else {ROUTE: dict(route)})},
    )
    return encode_frame(header, {MASKED: Encoded(Codec.UINT8, (len(packed),), packed)})


def method_message(extra: dict[str, Any]) -> dict[str, Any] | None:
    """The method's message in a header's ``extra``; of a masked update what it tells of it, if anything."""
    if ATTEMPT not in extra or extra.keys() - {ATTEMPT, ROUTE}:
        return extra
    route = extra.get(ROUTE)
    return route if isinstance(route, dict) else None
