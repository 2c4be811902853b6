"""Error feedback: the quantization error of a round is added to the next update (Seide et al. 2014).

The sum of the decoded updates then follows the sum of the true updates, however few bits a round has. The
carry stays on the device, saved in the same transaction as the frame
(``runtime.storage.spool``).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.frames.tensors import Codec, Encoded, decode, encode

if TYPE_CHECKING:
    # numpy loads its random part on first use: an observing agent saves 3 MB
    from numpy.random import Generator


def with_error_carry(
    x: ArrayLike,
    carry: NDArray[np.float32] | None,
    codec: Codec,
    *,
    per_channel: bool = False,
    rng: "Generator | None" = None,
    keep: float = 0.01,
    coarseness: float = 1.0,
) -> tuple[Encoded, NDArray[np.float32]]:
    """Encode ``x + carry``; the new carry is the encoding error.

    Args:
        x: the tensor to send, any shape, finite.
        carry: of the previous round, same shape; None in the first.
        codec: as in :func:`protocol.frames.tensors.encode`, like the rest.
        per_channel: see there.
        rng: see there.
        keep: see there.
        coarseness: see there.

    Returns:
        The encoded tensor, and ``(x + carry) - decode(encoded)`` (float32).

    Raises:
        ValueError: the shapes differ, or the sum is not finite.
    """
    if carry is not None and np.shape(carry) != np.shape(x):
        raise ValueError(
            f"error carry of shape {np.shape(carry)} does not fit a tensor of shape {np.shape(x)}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.asarray(x, np.float32) if carry is None else np.add(x, carry, dtype=np.float32)
    encoded = encode(total, codec, per_channel=per_channel, rng=rng, keep=keep, coarseness=coarseness)
    return encoded, np.subtract(total, decode(encoded), dtype=np.float32)
