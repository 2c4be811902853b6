"""Similarity of the devices' views, the weights from it (3), and groups excluded by these. NumPy only, pure.

A view r_k is a small vector: the labelled windows' features from one device's encoder. Memory is O(devices
squared) only for the matrix of small fleets.

Shapes: K devices, D values of a view, G devices of a group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.methods.tactfl import TactflConfig

Array = NDArray[np.float64]
_DECIMALS: Final = 9
"""Similarities are rounded, so that machines whose sums differ in the last bits compute the same weights."""
SHOWN: Final = 256
"""Up to this many devices, similarities are one matrix in memory; beyond, each row is computed when it is
read."""
_LOOKED_AT: Final = 1024
"""Of a larger fleet this many of the lightest devices are searched for groups."""
_LIGHT: Final = 0.75
"""A device under this share of an equal weight may belong to an excluded group."""
_PUSHED_OUT: Final = 0.5
"""A group is excluded if its total weight is under this share of equal weights."""


@dataclass(frozen=True)
class Likeness:
    """Cosines between views, computed on demand.

    Attributes:
        unit_KD: views of length 1, float64; a view of zeros stays zeros, and has similarity 0 to all.
    """

    unit_KD: Array

    @classmethod
    def of(cls, views_KD: NDArray[np.floating], *, centre: bool = False) -> "Likeness":
        """From views; ``centre`` subtracts the devices' median view first.

        Raises:
            ValueError: a view is not finite (the caller leaves such devices out).
        """
        wide_KD = np.asarray(views_KD, np.float64)
        if not np.isfinite(wide_KD).all():
            raise ValueError("views must be finite")
        if centre and len(wide_KD):
            wide_KD = wide_KD - np.median(wide_KD, axis=0)
        # divide by the largest value first: its square neither overflows nor vanishes
        wide_KD = wide_KD / _positive(np.abs(wide_KD).max(axis=1, initial=0.0, keepdims=True))
        return cls(wide_KD / _positive(np.sqrt(np.square(wide_KD).sum(axis=1, keepdims=True))))

    def __len__(self) -> int:
        return len(self.unit_KD)

    def rows(self, index_G: NDArray[np.int64] | slice) -> Array:
        """Similarities of some devices to all, (G, K): -1 to 1; ones on the diagonal."""
        s_GK = np.clip(self.unit_KD[index_G] @ self.unit_KD.T, -1.0, 1.0).round(_DECIMALS)
        own_G = np.arange(len(self))[index_G]
        s_GK[np.arange(len(own_G)), own_G] = 1.0
        return s_GK

    def mean_to_others(self) -> Array:
        """Each device's mean similarity to the others, (K,); 1 if there is no other."""
        count = len(self)
        if count <= 1:
            return np.ones(count)
        # the sum of a device's cosines is one product with the sum of all: no matrix
        sum_K = self.unit_KD @ self.unit_KD.sum(axis=0) - np.square(self.unit_KD).sum(axis=1)
        mean_K: Array = (sum_K / (count - 1)).round(_DECIMALS)
        return mean_K


class SimilarityRows(Mapping[str, Mapping[str, float]]):
    """Device -> device -> similarity, computed a row at a time: for fleets whose matrix would fill memory."""

    def __init__(self, devices: Sequence[str], alike: Likeness) -> None:
        self._devices, self._alike = tuple(devices), alike
        self._at = {device: k for k, device in enumerate(self._devices)}

    def __getitem__(self, device: str) -> Mapping[str, float]:
        at = self._at[device]
        return dict(zip(self._devices, self._alike.rows(slice(at, at + 1))[0].tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)


def shown(devices: Sequence[str], alike: Likeness) -> Mapping[str, Mapping[str, float]]:
    """The similarity matrix by names: dicts of up to :data:`SHOWN` devices, else :class:`SimilarityRows`."""
    if len(devices) > SHOWN:
        return SimilarityRows(devices, alike)
    s_KK = alike.rows(slice(None))
    return {
        d: dict(zip(devices, row_K, strict=True)) for d, row_K in zip(devices, s_KK.tolist(), strict=True)
    }


def _positive(x: Array) -> Array:
    return np.where(x > 0, x, 1.0)


def softmax(mean_K: Array, sharpness: float) -> Array:
    """In proportion to ``exp(sharpness * mean similarity to the others)``."""
    scaled_K = sharpness * mean_K
    grown_K = np.exp(scaled_K - scaled_K.max())
    share_K: Array = grown_K / grown_K.sum()
    return share_K


def clamp(mean_K: Array) -> Array | None:
    """In proportion to the mean similarity where it is positive; None if it is positive nowhere."""
    positive_K = np.maximum(mean_K, 0.0)
    total = positive_K.sum()
    return positive_K / total if total > 0 else None


def literal(mean_K: Array) -> Array | None:
    """Row sums of S without its diagonal over their total (a reading of (3)); None if it is not positive.

    A row with a negative sum has weight zero: no model is subtracted.
    """
    return clamp(mean_K) if mean_K.sum() > 0 else None


_RULES: Final[Mapping[str, Callable[[Array, TactflConfig], Array | None]]] = {
    "softmax": lambda mean_K, config: softmax(mean_K, config.sharpness),
    "clamp": lambda mean_K, _: clamp(mean_K),
    "literal": lambda mean_K, _: literal(mean_K),
}


def by_similarity(mean_K: Array, config: TactflConfig) -> Array | None:
    """Weights (3) by ``config.rule``, before the floor, (K,), summing to 1; None: the rule gives none."""
    return _RULES[config.rule](mean_K, config)


def floored(share_K: Array, floor: float) -> Array:
    """Weights with none below ``floor / K``, and still a sum of 1: each gives some to all."""
    kept_K: Array = floor / max(1, len(share_K)) + (1.0 - floor) * share_K
    return kept_K


@dataclass(frozen=True)
class Group:
    """Devices that agree with each other and not with the rest, and have little weight.

    Attributes:
        devices: indices, ascending; two at least.
        weight: their sum.
        equal: the sum with equal weights.
        within: mean similarity of two of them.
        between: mean similarity of one of them and one of the rest.
    """

    devices: tuple[int, ...]
    weight: float
    equal: float
    within: float
    between: float


def pushed_out(alike: Likeness, share_K: Array) -> list[Group]:
    """The groups that such weights exclude.

    Two light devices belong together if they are more similar to each other than either is to the rest, and
    nearer than halfway from that to the similarity within the rest: relative measures, since models with the
    same start of the round may all have similarities near 1. A single device is no group: its weight is
    visible.
    """
    count = len(alike)
    light_K = share_K * count < _LIGHT
    light_G = np.flatnonzero(light_K)
    if len(light_G) > _LOOKED_AT:
        light_G = np.sort(light_G[np.argsort(share_K[light_G], kind="stable")[:_LOOKED_AT]])
    rest_K = np.flatnonzero(~light_K)
    if len(light_G) < 2 or not len(rest_K):  # noqa: PLR2004 - a group is two at least
        return []
    s_GG = Likeness(alike.unit_KD[light_G]).rows(slice(None))
    between_G = alike.unit_KD[light_G] @ alike.unit_KD[rest_K].mean(axis=0)
    common = Likeness(alike.unit_KD[rest_K]).mean_to_others().mean()
    least_G = np.maximum(between_G, (between_G + common) / 2)
    linked_GG = s_GG >= np.maximum(least_G[:, None], least_G[None, :])
    groups = []
    for members in _components(linked_GG):
        if len(members) < 2:  # noqa: PLR2004 - likewise
            continue
        pairs = s_GG[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        group = Group(
            devices=tuple(int(k) for k in light_G[members]),
            weight=float(share_K[light_G[members]].sum()),
            equal=len(members) / count,
            within=float(pairs.mean()),
            between=float(between_G[members].mean()),
        )
        # a chain of similar pairs may connect devices that as a whole are no group
        if group.weight < _PUSHED_OUT * group.equal and group.within > group.between:
            groups.append(group)
    return groups


def _components(linked_GG: NDArray[np.bool_]) -> list[list[int]]:
    """Indices by connected part, each ascending."""
    left, parts = set(range(len(linked_GG))), []
    while left:
        reached, new = set[int](), {min(left)}
        while new:
            reached |= new
            new = set(np.flatnonzero(linked_GG[sorted(new)].any(axis=0)).tolist()) - reached
        left -= reached
        parts.append(sorted(reached))
    return parts
