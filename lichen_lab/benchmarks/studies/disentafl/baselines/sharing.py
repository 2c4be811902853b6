"""The sharing rules of the baselines: which devices share a block, and how it is mixed.

A block is a part of a device's network that is shared or kept as a whole, here one vector ``w_N`` of its
parameters. P devices hold it, N values.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from lichen_lab.benchmarks.study.mixes import Mix, mean
from models.contract import Profile

Blocks = dict[str, Tensor]
"""Name -> ``w_N``."""
Linked = Callable[[str, Profile, Profile], bool]
"""Whether devices of two profiles share a block that both of them hold."""
GROUP_ONLY: Final = "group."
"""Prefix of the name of a block that Cross-FedAvg shares only within a group."""
LAST: Final = "last/"
"""Prefix of the name of a last layer that is a block of its own, where ``last_layer`` is not ``shared``."""


def everyone(block: str, mine: Profile, theirs: Profile) -> bool:
    """With all devices that have the block."""
    del block, mine, theirs
    return True


def group(block: str, mine: Profile, theirs: Profile) -> bool:
    """With devices that read and predict the same."""
    del block
    return mine == theirs


def related(block: str, mine: Profile, theirs: Profile) -> bool:
    """All within the group; most with devices that have an input *and* a target in common."""
    inputs = set(mine.modalities) & set(theirs.modalities)
    targets = set(mine.targets) & set(theirs.targets)
    return mine == theirs or (bool(inputs and targets) and not block.startswith(GROUP_ONLY))


def unrelated(block: str, mine: Profile, theirs: Profile) -> bool:
    """With devices that have neither an input nor a target in common."""
    del block
    return not (set(mine.modalities) & set(theirs.modalities) or set(mine.targets) & set(theirs.targets))


def own(w_PN: Tensor, weight_P: Tensor) -> Tensor:
    """Each keeps its own."""
    del weight_P
    return w_PN


def pull(share: float) -> Mix:
    """Each moves that share of the way from its own block to the mean."""

    def mix(w_PN: Tensor, weight_P: Tensor) -> Tensor:
        return w_PN.lerp(mean(w_PN, weight_P), share)

    return mix


def mixed(
    held: Mapping[str, Blocks],
    profiles: Mapping[str, Profile],
    weights: Mapping[str, float],
    linked: Linked,
    mix: Mix,
) -> dict[str, Blocks]:
    """The mixed blocks of every device.

    Args:
        held: device -> its blocks after training.
        profiles: of the same devices.
        weights: likewise, above 0: numbers of their windows.
        linked: symmetrical, and true of a device and itself.
        mix: makes blocks from those of linked devices.
    """
    made: dict[str, Blocks] = {name: {} for name in held}
    for block in dict.fromkeys(block for blocks in held.values() for block in blocks):
        holders = [name for name in held if block in held[name]]
        for peers, members in cliques(holders, profiles, block, linked).items():
            weight_P = torch.tensor([weights[name] for name in peers])
            new_PN = mix(torch.stack([held[name][block] for name in peers]), weight_P)
            for name in members:
                made[name][block] = new_PN[peers.index(name)]
    return made


def cliques(
    holders: Iterable[str], profiles: Mapping[str, Profile], block: str, linked: Linked
) -> dict[tuple[str, ...], list[str]]:
    """Linked devices -> the holders that are linked with exactly these."""
    holders = list(holders)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in holders:
        peers = tuple(o for o in holders if linked(block, profiles[name], profiles[o]))
        groups.setdefault(peers, []).append(name)
    return groups
