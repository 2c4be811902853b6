"""The online data protocol of the QQR paper (Wang et al., section VI), over any labelled windows.

Every device has a pool of windows, drawn by a Dirichlet share of the classes, and holds an evolving set of
them: each round some new ones come in and the oldest go out. In some rounds part of the windows lack a
modality (quantity imbalance), or a modality is noisy (quality imbalance).

Pools and faults have seeds of their own: fleets of one seed that differ in their faults alone hold the same
windows in the same rounds, so runs on them are paired. A device's pool does not depend on how many devices
come after it. The model's initial values and the order of training come from the simulation's own seed.
"""

from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from lichen_lab.simulation.data.streams import Evolving, dirichlet_pools, rng_of
from models.contract import WindowSet
from protocol.errors import Misconfigured

_POOLS: Final = 101
_FAULTS: Final = 102


class HasWindows(Protocol):
    """A part of a data set (:class:`lichen_lab.simulation.data.access.split.DataSplit`)."""

    @property
    def windows(self) -> WindowSet:
        """All windows."""


@dataclass(frozen=True)
class OnlineSetting:
    """Windows of devices and their faults; see :func:`online_fleet` and ``streams.Evolving``.

    ``missing_share``, ``affected_rounds`` and ``noisy_rounds`` are the paper's lambda_p (the share
    *missing*), lambda_r and delta_r.
    """

    devices: int = 5
    pool: int = 2000
    alpha: float = 1.0
    size: int = 500
    step: int = 20
    missing_share: float = 0.0
    affected_rounds: float = 0.0
    noisy_rounds: float = 0.0
    snr_db: float = 10.0

    def fleet(self, split: "HasWindows | WindowSet", seed: int) -> dict[str, Evolving]:
        """The devices of this setting; see :func:`online_fleet`."""
        return online_fleet(split, seed=seed, **self.__dict__)


PAPER: Final = OnlineSetting()
"""UCI-HAR without any fault: the paper's FC and PQ."""
PAPER_QUANTITY: Final = replace(PAPER, missing_share=0.9, affected_rounds=0.5)
"""UCI-HAR, quantity imbalance: FC, PNR, ZP and IS are compared here."""
PAPER_QUALITY: Final = replace(PAPER, noisy_rounds=0.5, snr_db=10.0)
"""UCI-HAR, quality imbalance: PQ, PLR and BQ are compared here (beta = .5)."""


def online_fleet(
    split: HasWindows | WindowSet,
    *,
    devices: int = PAPER.devices,
    pool: int = PAPER.pool,
    alpha: float = PAPER.alpha,
    seed: int,
    size: int = PAPER.size,
    step: int = PAPER.step,
    missing_share: float = 0.0,
    affected_rounds: float = 0.0,
    noisy_rounds: float = 0.0,
    snr_db: float = PAPER.snr_db,
) -> dict[str, Evolving]:
    """Devices ``d0``, ``d1`` ... and what each holds at each round. They share the windows in memory.

    Args:
        split: labelled windows; those without a label are in no pool.
        devices: how many; pools of different devices overlap.
        pool: windows that a device sees in the end.
        alpha: of the Dirichlet share of classes: small is uneven, large is even.
        seed: decides pools, and separately every fault.
        size: windows held at a time, of the pool.
        step: new windows a round.
        missing_share: share of the windows that lack a modality in an affected round.
        affected_rounds: probability of a round to be affected, for each device by itself.
        noisy_rounds: probability of a round in which one modality is noisy.
        snr_db: its signal-to-noise ratio, in decibels.

    Raises:
        Misconfigured: a number is out of its bounds, or no window is labelled; the message names it.
    """
    windows = split if isinstance(split, WindowSet) else split.windows
    _check_sizes(devices=devices, pool=pool, size=size)
    _check_shares(missing_share=missing_share, affected_rounds=affected_rounds, noisy_rounds=noisy_rounds)
    if size > pool or not 0 <= step <= size:
        raise Misconfigured(
            f"an evolving set of size {size} with step {step} over a pool of {pool}: size must be at most "
            "pool, and step from 0 to size"
        )
    if not (alpha > 0 and np.isfinite(alpha) and np.isfinite(snr_db)):
        raise Misconfigured(f"alpha {alpha} must be above 0, and alpha and snr_db {snr_db} finite")
    if not (windows.y_B >= 0).any():
        raise Misconfigured(f"none of the {len(windows)} windows has a label; pools are drawn by class")
    orders = dirichlet_pools(windows.y_B, devices, pool, alpha, rng_of(seed, _POOLS))
    return {
        f"d{number}": Evolving(
            pool=windows,
            seed=_seed_of(seed, _FAULTS, number),
            size=size,
            step=step,
            missing_share=missing_share,
            affected_rounds=affected_rounds,
            noisy_rounds=noisy_rounds,
            snr_db=snr_db,
            order=order,
        )
        for number, order in enumerate(orders)
    }


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0])


def _check_sizes(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise Misconfigured(f"{name} is {number}; it must be at least 1")


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise Misconfigured(f"{name} is {share}; it is a share, from 0 to 1")
