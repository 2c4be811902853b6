"""Adam's moments, which a device keeps from round to round and never sends. Imports torch.

A round has few steps on little data: with moments of its own each time, most of them would be Adam's first,
which are all of one size. By blob, so that a domain or target that comes back finds its own again.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Final

import numpy as np
import torch

from models import training
from models.contract import FloatArray, Tensors, blob_of
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.supernet import Subnet

PREFIX: Final = "moments/"
"""Of what a device keeps: ``moments/<blob>`` is (1 + 2 W,), steps taken, and both moments of W values."""
_ABSURD: Final = 1e4
"""Mean squared slopes beyond come of a broken sensor or label. They would take thousands of rounds to fade,
and the device's steps would be next to nothing meanwhile."""


def begun(
    net: Subnet, config: DisentAflConfig, lr: float, private: Mapping[str, FloatArray]
) -> training.Adam:
    """An optimizer of the network that goes on with the moments that the device kept, if it keeps any."""
    own = dict(net.named_parameters())
    adam = training.Adam([own[path] for path in net.wire().values()], lr, config.weight_decay)
    if config.keep_moments:
        adam.resume([_kept(private, blob, size) for blob, size in _sizes(net).items()])
    return adam


def after(
    net: Subnet, config: DisentAflConfig, adam: training.Adam, private: Mapping[str, FloatArray]
) -> Tensors:
    """What the device keeps, by name in ``private``; of blobs that did not train, what it kept before."""
    if not config.keep_moments:
        return {}
    sizes = _sizes(net)
    kept = {name: tensor for name, tensor in private.items() if name.startswith(PREFIX)}
    for blob, (mean, square, steps) in zip(sizes, adam.moments(list(sizes.values())), strict=True):
        kept[f"{PREFIX}{blob}"] = np.concatenate([[np.float32(steps)], mean.numpy(), square.numpy()])
    return kept


def _sizes(net: Subnet) -> dict[str, int]:
    """By blob, in the order of the network's wire names, its number of values."""
    own = dict(net.named_parameters())
    runs = groupby(net.wire().items(), key=lambda item: blob_of(item[0]))
    return {blob: sum(own[path].numel() for _, path in run) for blob, run in runs}


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
