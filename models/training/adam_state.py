"""Adam's moments, which a device keeps from round to round and never sends. Imports torch.

A round has few steps: with new moments each time, most would be Adam's first steps, which all have one size.
Moments are stored by blob, so a part of the model that returns to the route finds its moments.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from models.contract import FloatArray, Tensors
from models.training.local import Adam

PREFIX: Final = "moments/"
"""Prefix in private tensors: ``moments/<blob>`` is (1 + 2 W,): steps, and both moments of W values."""
_ABSURD: Final = 1e4
"""Bound of mean squared gradients: larger ones come from broken sensors or labels, and would suppress the
device's steps for thousands of rounds."""


def resume(adam: Adam, sizes: Mapping[str, int], private: Mapping[str, FloatArray]) -> None:
    """Restore an optimizer's moments from private tensors; blobs without stored moments start anew.

    Args:
        adam: of the parameters of these blobs, in order.
        sizes: number of values (W) by blob, in the optimizer's order.
        private: the device's private tensors.
    """
    adam.resume([_kept(private, blob, size) for blob, size in sizes.items()])


def kept(adam: Adam, sizes: Mapping[str, int], private: Mapping[str, FloatArray]) -> Tensors:
    """The moments to store after a round, by name in ``private``; arguments as of :func:`resume`.

    Blobs that were not trained in the round keep their stored moments.
    """
    moments = {name: tensor for name, tensor in private.items() if name.startswith(PREFIX)}
    for blob, (mean, square, steps) in zip(sizes, adam.moments(list(sizes.values())), strict=True):
        moments[f"{PREFIX}{blob}"] = np.concatenate([[np.float32(steps)], mean.numpy(), square.numpy()])
    return moments


def _kept(
    private: Mapping[str, FloatArray], blob: str, size: int
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A blob's stored moments; none if they do not fit or exceed the bound."""
    flat = private.get(f"{PREFIX}{blob}")
    if flat is None or flat.shape != (1 + 2 * size,) or not np.isfinite(flat).all() or flat[0] < 0:
        return torch.zeros(size), torch.zeros(size), 0.0
    mean, square = torch.split(torch.from_numpy(flat[1:].copy()), size)
    if size and float(square.max()) > _ABSURD:
        return torch.zeros(size), torch.zeros(size), 0.0
    return mean, square.clamp(min=0), float(flat[0])
