"""Distributes windows: labelled ones, each device's, and missing modalities. NumPy, seeded.

Each purpose has a random generator of its own, so that fleets of one seed that differ in one condition are
equal in all others. A larger share of labelled windows includes a smaller one, and a device that lacks a
modality at one rate lacks it at a larger rate.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import WindowSet
from protocol.errors import Misconfigured

Places = NDArray[np.int64]
LABELLED: Final = 11
SHARED: Final = 12
LACKING: Final = 13
BROKEN: Final = 14


def rng_of(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """A random generator for one purpose."""
    return np.random.default_rng([seed, purpose, *more])


def labelled_places(count: int, share: float, seed: int) -> tuple[Places, Places]:
    """Places of the coordinator's windows among ``count``, and the others; both ascending.

    Raises:
        Misconfigured: the share leaves one side without windows.
    """
    order = rng_of(seed, LABELLED).permutation(count)
    cut = round(share * count)
    if not 0 < cut < count:
        raise Misconfigured(f"a labelled share of {share} of {count} windows leaves one side without any")
    return np.sort(order[:cut]), np.sort(order[cut:])


def dirichlet_shares(y_B: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[Places]:
    """Divide each class among the devices by Dirichlet(``alpha``); every window goes to one device.

    Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification (2019).

    Args:
        y_B: class of every window.
        devices: number of devices; some may get nothing.
        alpha: small is uneven, large is even.
        seed: of the shares, and of who gets which window.
    """
    rng = rng_of(seed, SHARED)
    parts: list[list[Places]] = [[] for _ in range(devices)]
    for value in np.unique(y_B):
        members = rng.permutation(np.flatnonzero(y_B == value))
        ends = np.rint(rng.dirichlet(np.full(devices, alpha)).cumsum()[:-1] * len(members)).astype(np.int64)
        for own, places in zip(parts, np.split(members, ends), strict=True):
            own.append(places)
    return [np.sort(np.concatenate(own)) for own in parts]


def lacking(devices: int, modalities: int, missing: float, seed: int) -> NDArray[np.bool_]:
    """(devices, M): whether a device lacks a modality, drawn independently.

    A modality that no device would have stays on the device that would lose it last, so that its encoder is
    trained.
    """
    chance_DM = rng_of(seed, LACKING).random((devices, modalities))
    lacks_DM: NDArray[np.bool_] = chance_DM < missing
    lacks_DM[chance_DM.argmax(axis=0), np.arange(modalities)] &= ~lacks_DM.all(axis=0)
    return lacks_DM


def some(places: Places, most: int | None) -> Places:
    """All places, or at most ``most``, spread evenly."""
    count = len(places)
    spread = np.linspace(0, count - 1, min(count, most or count))
    return places[np.unique(spread.round().astype(np.int64))]


def without(windows: WindowSet, lacks_M: Sequence[bool] | NDArray[np.bool_]) -> WindowSet:
    """The windows without those modalities."""
    kept_M = ~np.asarray(lacks_M)
    context = windows.context
    if context is not None:
        shown = {n: x if k else np.zeros_like(x) for (n, x), k in zip(context.x.items(), kept_M, strict=True)}
        context = replace(context, x=shown, points_BM=context.points_BM * kept_M)
    return replace(
        windows,
        x={
            name: x_BCT if kept else np.zeros_like(x_BCT)
            for (name, x_BCT), kept in zip(windows.x.items(), kept_M, strict=True)
        },
        present_BM=windows.present_BM & kept_M,
        context=context,
    )


def unlabelled(windows: WindowSet) -> WindowSet:
    """The windows without labels."""
    return replace(windows, y_B=np.full_like(windows.y_B, -1))
