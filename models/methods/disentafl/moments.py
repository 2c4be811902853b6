"""Adam's moments of a route's knowledge types, stored on the device (``training.adam_state``). Imports torch.

By blob, so that a domain or target that comes back finds its own again.
"""

from collections.abc import Mapping
from itertools import groupby

from models.contract import FloatArray, Tensors, blob_of
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.network.supernet import Subnet
from models.training import adam_state, local


def begun(net: Subnet, config: DisentAflConfig, lr: float, private: Mapping[str, FloatArray]) -> local.Adam:
    """An optimizer of the network that continues with the device's stored moments, if any."""
    own = dict(net.named_parameters())
    adam = local.Adam([own[path] for path in net.wire().values()], lr, config.weight_decay)
    if config.keep_moments:
        adam_state.resume(adam, _sizes(net), private)
    return adam


def after(
    net: Subnet, config: DisentAflConfig, adam: local.Adam, private: Mapping[str, FloatArray]
) -> Tensors:
    """What the device keeps, by name in ``private``; of blobs that did not train, what it kept before."""
    return adam_state.kept(adam, _sizes(net), private) if config.keep_moments else {}


def _sizes(net: Subnet) -> dict[str, int]:
    """By blob, in the order of the network's wire names, its number of values."""
    own = dict(net.named_parameters())
    runs = groupby(net.wire().items(), key=lambda item: blob_of(item[0]))
    return {blob: sum(own[path].numel() for _, path in run) for blob, run in runs}
