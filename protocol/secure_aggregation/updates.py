"""The frame of a masked update: an ordinary update whose header tells nothing of its device's data. Pure."""

from typing import Final

from protocol.frames.frame import encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded
from protocol.secure_aggregation.attempt import Attempt

MASKED: Final = "masked"
"""Name of the only tensor: the packed vector, as bytes."""
ATTEMPT: Final = "attempt"
"""Key of the header's ``extra``: the attempt's digest, hexadecimal."""


def masked_frame(attempt: Attempt, method: str, device: str, packed: bytes) -> bytes:
    """The update of a device in an attempt.

    Args:
        attempt: of the round.
        method: of the task.
        device: the sender.
        packed: its vector with all masks.
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
        extra={ATTEMPT: attempt.digest.hex()},
    )
    return encode_frame(header, {MASKED: Encoded(Codec.UINT8, (len(packed),), packed)})
