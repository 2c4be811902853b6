"""Adam's moments, which a device keeps from round to round and never sends. Imports torch.

A round has few steps on little data: with moments of its own each time, most of them would be Adam's first,
which are all of one size. They are kept by blob, so that a part of the model that comes back finds its own.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from models.contract import FloatArray, Tensors
from models.training.local import Adam

PREFIX: Final = "moments/"
"""Of what a device keeps: ``moments/<blob>`` is (1 + 2 W,), steps taken, and both moments of W values."""
_ABSURD: Final = 1e4
"""Mean squared slopes beyond come of a broken sensor or label. They would take thousands of rounds to fade,
and the device's steps would be next to nothing meanwhile."""


def resume(adam: Adam, sizes: Mapping[str, int], private: Mapping[str, FloatArray]) -> None:
    """Let an optimizer go on with what the device kept; what it kept nothing of begins anew.

    Args:
        adam: of parameters that lie in these blobs, blob after blob.
        sizes: by blob, in the optimizer's order, its number of values (W).
        private: what the device keeps.
    """
    adam.resume([_kept(private, blob, size) for blob, size in sizes.items()])


def kept(adam: Adam, sizes: Mapping[str, int], private: Mapping[str, FloatArray]) -> Tensors:
    """What the device keeps after a round, by name in ``private``; arguments as of :func:`resume`.

    Of blobs that had no part in the round, it is what was kept before.
    """
    found = {name: tensor for name, tensor in private.items() if name.startswith(PREFIX)}
    for blob, (mean, square, steps) in zip(sizes, adam.moments(list(sizes.values())), strict=True):
        found[f"{PREFIX}{blob}"] = np.concatenate([[np.float32(steps)], mean.numpy(), square.numpy()])
    return found


def _kept(
    private: Mapping[str, FloatArray], blob: str, size: int
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A blob's moments; none where the device has none that fit, or something absurd went into them."""
    flat = private.get(f"{PREFIX}{blob}")
    if flat is None or flat.shape != (1 + 2 * size,) or not np.isfinite(flat).all() or flat[0] < 0:
        return torch.zeros(size), torch.zeros(size), 0.0
    mean, square = torch.split(torch.from_numpy(flat[1:].copy()), size)
    if size and float(square.max()) > _ABSURD:
        return torch.zeros(size), torch.zeros(size), 0.0
    return mean, square.clamp(min=0), float(flat[0])
