"""Error feedback: the quantization error of a round is added to the next update (Seide et al. 2014).

The sum of the decoded updates then follows the sum of the true updates, however few bits a round has. The
carry stays on the device, saved in the same transaction as the frame
(``runtime.storage.spool``).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.frames.tensors import BITS, Codec, Encoded, decode, encode
from protocol.frames.together import encode_each, groups_of, joined, split

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


def all_with_error_carry(
    tensors: Mapping[str, NDArray[np.float32]],
    carry: Mapping[str, NDArray[np.float32]],
    codec: Codec,
    coarseness: Callable[[str], float],
) -> tuple[dict[str, Encoded], dict[str, NDArray[np.float32]]]:
    """:func:`with_error_carry` of several tensors, each with one range; small ones are quantized together.

    Args:
        tensors: by name, finite.
        carry: of the previous round, of the same shapes; a tensor may have none.
        codec: of all.
        coarseness: by name.

    Returns:
        The encoded tensors, and the new carry.

    Raises:
        ValueError: as :func:`with_error_carry`.
    """
    encoded: dict[str, Encoded] = {}
    left: dict[str, NDArray[np.float32]] = {}
    for held in (True, False) if codec in BITS else ():
        some = {name: x for name, x in tensors.items() if x.size and (name in carry) is held}
        for names in groups_of(some):
            if len(names) > 1:
                total_N = joined(some, names)
                shapes = {name: some[name].shape for name in names}
                if held:
                    with np.errstate(over="ignore", invalid="ignore"):  # refused by its encoding
                        total_N += joined(carry, names)
                made, decoded_N = encode_each(total_N, shapes, codec)
                encoded |= made
                left |= split(np.subtract(total_N, decoded_N, out=total_N), shapes)
    for name in tensors.keys() - encoded.keys():
        encoded[name], left[name] = with_error_carry(
            tensors[name], carry.get(name), codec, coarseness=coarseness(name)
        )
    return encoded, left
