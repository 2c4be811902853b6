"""The fleets of the study by name. A builder is seeded and takes seconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.data.merge_ac import build as merge_ac
from lichen_lab.benchmarks.studies.disentafl.data.merge_fa import build as merge_fa
from lichen_lab.benchmarks.studies.disentafl.data.merge_mm import build as merge_mm
from lichen_lab.benchmarks.studies.disentafl.data.merge_vm import build as merge_vm
from lichen_lab.benchmarks.studies.disentafl.data.uci_har import build as uci_har_xm
from lichen_lab.benchmarks.studies.disentafl.data.vehicle import build as vehicle
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from models.data.window_set import select
from protocol.errors import Misconfigured

BUILDERS: Final[Mapping[str, Callable[..., TargetFleet]]] = {
    "vehicle-xm": vehicle,
    "uci-har-xm": uci_har_xm,
    "merge-fa": merge_fa,
    "vehicle-xm-random": partial(vehicle, by_node=False),
    "merge-ac": merge_ac,
    "merge-vm": merge_vm,
    "merge-vm, rho 0.2": partial(merge_vm, rho=0.2),
    "merge-vm, rho 0.8": partial(merge_vm, rho=0.8),
    "merge-mm": merge_mm,
}
"""The fleets of the tables; MERGE-VM has a rho of 0.5 where none is named."""
_SMALL_VM: Final = {"devices": 4, "train": 24, "test": 20}
SMALL: Final[Mapping[str, Mapping[str, int]]] = {
    "vehicle-xm": {"each": 1, "samples": 40},
    "uci-har-xm": {"each": 1, "train": 24, "test": 24},
    "merge-fa": {"each": 1, "train": 30, "test": 20},
    "vehicle-xm-random": {"each": 1, "samples": 40},
    "merge-ac": {"each": 1, "train": 30, "test": 20},
    "merge-vm": _SMALL_VM,
    "merge-vm, rho 0.2": _SMALL_VM,
    "merge-vm, rho 0.8": _SMALL_VM,
    "merge-mm": {"each": 1, "train": 24, "test": 24},
}
"""The fleets with one small device of each kind: check that runs work, not their figures."""
_TUNED_ON: Final = 0.3


def fleet(
    name: str, seed: int, conditions: None = None, *, tuning: bool = False, small: bool = False
) -> TargetFleet:
    """The fleet of that name.

    Args:
        name: a key of :data:`BUILDERS`.
        seed: of all random draws.
        conditions: there are none.
        tuning: evaluate on held-out training windows; see :func:`held_out`.
        small: see :data:`SMALL`.

    Raises:
        Misconfigured: there is none, or its data set is not here.
    """
    del conditions
    if name not in BUILDERS:
        raise Misconfigured(f"no fleet {name!r}; there are {', '.join(BUILDERS)}")
    made = BUILDERS[name](seed, **(SMALL[name] if small else {}))
    return held_out(made, seed) if tuning else made


def held_out(fleet: TargetFleet, seed: int = 0) -> TargetFleet:
    """The fleet with its training windows split into train and test, and without its test windows.

    Learning rates are chosen on it, so that the tables' test windows stay unused.
    """
    return replace(fleet, members=tuple(_tuned(m, at, seed) for at, m in enumerate(fleet.members)))


def _tuned(member: TargetDevice, at: int, seed: int) -> TargetDevice:
    order = np.random.default_rng([seed, 5, at]).permutation(len(member.train))
    cut = max(1, round(_TUNED_ON * len(order)))
    test, train = np.sort(order[:cut]), np.sort(order[cut:])
    return replace(
        member,
        train=select(member.train, train),
        test=select(member.train, test),
        truth={name: y_B[test] for name, y_B in member.train_truth.items()},
        train_truth={name: y_B[train] for name, y_B in member.train_truth.items()},
    )
