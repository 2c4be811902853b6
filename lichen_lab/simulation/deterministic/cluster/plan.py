"""A seed's scenario for a coordinator of several processes. Pure."""

import random
from dataclasses import replace
from typing import Final

from lichen_lab.simulation.deterministic.scenario.scenario import (
    COORDINATOR,
    FaultKind,
    Scenario,
    ScheduledFault,
    draw,
)

STORE: Final = "store"
_LEADS: Final = ("lead-1", "lead-2")
_INGESTS: Final = ("ingest-1", "ingest-2", "ingest-3")
_WEIGHTS: Final = {
    FaultKind.FREEZE: 5,
    FaultKind.STORE_PAUSE: 2,
    FaultKind.STORE_FAILOVER: 2,
    FaultKind.STORE_CUT: 3,
    FaultKind.COMMIT_LOST: 5,
    FaultKind.BUCKET_DOWN: 1,
}
_OF_STORE: Final = (FaultKind.STORE_PAUSE, FaultKind.STORE_FAILOVER, FaultKind.BUCKET_DOWN)
_NOT_HERE: Final = (FaultKind.CLOCK, FaultKind.ROT)
"""Not on the cluster's machines: their clocks are set by a time service, and they hold no state."""


def draw_cluster(seed: int) -> Scenario:
    """The scenario of a seed: as that of one process, whose faults strike any of the cluster's."""
    scenario = draw(seed)
    rng = random.Random(f"cluster {seed}")  # noqa: S311 - a seed, not a secret
    ingests = _INGESTS[: rng.choice((2, 2, 3))]
    processes = (*_LEADS, *ingests)
    faults = [_moved(rng, fault, processes) for fault in scenario.faults if _strikes(fault)]
    kinds = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=rng.randint(3, 12))
    faults += [_fault(rng, kind, processes, scenario.faults_end_s) for kind in kinds]
    return replace(
        scenario,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        leads=_LEADS,
        ingests=ingests,
        store_slow=rng.choice((0.0, 0.02, 0.1)),
        rollouts=False,
    )


def _strikes(fault: ScheduledFault) -> bool:
    return fault.kind is not FaultKind.ROT and not (fault.node == COORDINATOR and fault.kind in _NOT_HERE)


def _moved(rng: random.Random, fault: ScheduledFault, processes: tuple[str, ...]) -> ScheduledFault:
    return replace(fault, node=rng.choice(processes)) if fault.node == COORDINATOR else fault


def _fault(rng: random.Random, kind: FaultKind, processes: tuple[str, ...], end: float) -> ScheduledFault:
    node = STORE if kind in _OF_STORE else rng.choice((*_LEADS, *processes))
    span = rng.choice((0.5, rng.uniform(0.1, 4.0), rng.uniform(4.0, 20.0)))
    return ScheduledFault(end * rng.random(), kind, node, span)
