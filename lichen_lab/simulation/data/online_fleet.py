"""The online data protocol of the QQR paper (Wang et al., section VI), over any labelled windows.

Every device has a pool of windows, drawn by a Dirichlet share of the classes, and holds an evolving set of
them: each round some new ones come in and the oldest go out. In some rounds part of the windows lack a
modality (quantity imbalance), or a modality is noisy (quality imbalance).

Pools and faults have seeds of their own: fleets of one seed that differ in their faults alone hold the same
windows in the same rounds, so runs on them are paired. A device's pool does not depend on how many devices
come after it. The model's initial values and the order of training come from the simulation's own seed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from lichen_lab.simulation.data.streams import Evolving, dirichlet_pools, rng_of
from models.contract import WindowSet
from protocol.errors import Misconfigured

_POOLS: Final = 101
_FAULTS: Final = 102


@dataclass(frozen=True)
class OnlineSetting:
    """Windows of devices and their faults: UCI-HAR in the paper's setting, without any fault.

    Attributes:
        devices: how many; pools of different devices overlap.
        pool: windows that a device sees in the end.
        alpha: of the Dirichlet share of classes: small is uneven, large is even.
        size: windows held at a time, of the pool.
        step: new windows a round.
        missing_share: share of the windows that lack a modality in an affected round (the paper's lambda_p).
        affected_rounds: probability of a round to be affected, for each device by itself (lambda_r).
        noisy_rounds: probability of a round in which one modality is noisy (delta_r).
        snr_db: its signal-to-noise ratio, in decibels.
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

    def fleet(self, windows: WindowSet, seed: int) -> dict[str, Evolving]:
        """Devices ``d0``, ``d1`` ... and what each holds at each round. They share the windows in memory.

        Args:
            windows: those without a label are in no pool.
            seed: decides pools, and separately every fault.

        Raises:
            Misconfigured: a number is out of its bounds, or no window is labelled; the message names it.
        """
        self._check()
        if not (windows.y_B >= 0).any():
            raise Misconfigured(f"none of the {len(windows)} windows has a label; pools are drawn by class")
        orders = dirichlet_pools(windows.y_B, self.devices, self.pool, self.alpha, rng_of(seed, _POOLS))
        return {
            f"d{number}": Evolving(
                pool=windows,
                seed=_seed_of(seed, _FAULTS, number),
                size=self.size,
                step=self.step,
                missing_share=self.missing_share,
                affected_rounds=self.affected_rounds,
                noisy_rounds=self.noisy_rounds,
                snr_db=self.snr_db,
                order=order,
            )
            for number, order in enumerate(orders)
        }

    def _check(self) -> None:
        for name in ("devices", "pool", "size"):
            if (number := getattr(self, name)) < 1:
                raise Misconfigured(f"{name} is {number}; it must be at least 1")
        for name in ("missing_share", "affected_rounds", "noisy_rounds"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise Misconfigured(f"{name} is {share}; it is a share, from 0 to 1")
        if self.size > self.pool or not 0 <= self.step <= self.size:
            raise Misconfigured(
                f"an evolving set of size {self.size} with step {self.step} over a pool of {self.pool}: size "
                "must be at most pool, and step from 0 to size"
            )
        if not (self.alpha > 0 and np.isfinite(self.alpha) and np.isfinite(self.snr_db)):
            raise Misconfigured(
                f"alpha {self.alpha} must be above 0, and alpha and snr_db {self.snr_db} finite"
            )


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0])
