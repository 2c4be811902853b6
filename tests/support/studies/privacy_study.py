"""Made-up runs of ``lichen bench privacy``, and a made fleet of a few small devices."""

import numpy as np

from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacyRun
from tests.support.lab.simulated import task, windows


def made_up(one: PrivacyRun) -> PrivacyOutcome:
    """An outcome that depends only on the run."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)
    epsilon = 8.0 / one.setting.noise_multiplier if one.setting.noise_multiplier else None
    accuracy = float(rng.uniform(60, 80))
    attack = {"bound": float(rng.uniform(0, 4)), "bound_if_normal": float(rng.uniform(0, 4))}
    local = 4.0 / one.setting.local_noise if one.setting.local_noise else None
    return PrivacyOutcome(
        accuracy=accuracy,
        macro_f1=accuracy - 3,
        epsilon=epsilon,
        epsilon_of_seen=epsilon,
        epsilon_of_window=local,
        epsilon_of_moment=local,
        devices=420,
        parameters=3862,
        noise_share=0.5,
        taken=84.0,
        attack=attack,
        seconds=1.0,
    )


def fleet(devices: int = 8) -> PrivacyFleet:
    """Devices with a few windows of all classes."""
    return PrivacyFleet(task(), {f"d{n}": windows(12, n) for n in range(devices)}, windows(60, 99))
