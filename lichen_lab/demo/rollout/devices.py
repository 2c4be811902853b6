"""The devices of the rollouts: four watches that only predict, one of them in the lab."""

from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.demo.core.scenario import Layout, coordinator_config, observer_config
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from protocol.rollout import Trial

SPEED: Final = 30.0
"""Recorded seconds a second: a trial is over in seconds."""
LIMIT_S: Final = 20.0
"""Seconds of each exercise and arm, in a loop."""
GAP_S: Final = 5.0
"""Recorded seconds of silence before a recording begins again."""
STATE_EVERY_S: Final = 0.5
LEAST_ROUNDS: Final = 4
"""With fewer rounds, good versions disagree as much as a bad one."""
LAB: Final = "lab"
CLINIC: Final = "clinic"


@dataclass(frozen=True)
class ObserverWatch:
    """An observing device, worn by an unseen person."""

    name: str
    person: int
    site: str


WATCHES: Final = (
    ObserverWatch(spar_fleet.OBSERVER, spar_fleet.OBSERVED, LAB),
    ObserverWatch("alectoria", 8, CLINIC),
    ObserverWatch("letharia", 9, CLINIC),
    ObserverWatch("ramalina", 10, CLINIC),
)
CANARY: Final = WATCHES[0]


@dataclass(frozen=True)
class DemoPlan:
    """Options of a rollout."""

    canary: str
    waves: str
    trial: Trial


ALL_AT_ONCE: Final = DemoPlan("share:1", "1", Trial(windows=20, deadline_s=60.0))
"""The first version has nothing to compare with: it must only answer."""
PLAN: Final = DemoPlan(
    f"label:site={LAB}",
    "0.3,1",
    Trial(windows=140, deadline_s=60.0, min_agreement=0.45, max_accuracy_drop=0.25, max_latency_ratio=100.0),
)
"""The lab first, then some, then all. The demo's versions agree on 0.55 to 0.95 of so many windows, one with
shuffled weights on 0.0 to 0.4. Limits on latency are wide: this machine runs every process at once."""


def first_version(rounds: int) -> int:
    """The version that all watches run at first; exported in the middle of training."""
    return rounds // 2


def watch_recording(
    series: tuple[spar.Series, ...], watch: ObserverWatch, seed: int
) -> spar_fleet.FaultyRecording:
    """Its recording: some seconds of each exercise; the canary's gyroscope fails in the middle."""
    if watch is CANARY:
        return spar_fleet.observer_recording(series, seed)
    own = spar.on_one_wrist(spar.of_person(series, watch.person))
    return spar_fleet.FaultyRecording(spar.recording(own, seed=seed + watch.person, limit_s=LIMIT_S), ())


def config(layout: Layout, watch: ObserverWatch) -> dict[str, Any]:
    """Its configuration: it loops its recording, and has a label for its site."""
    source = layout.replay(watch.name, SPEED, loop=True, loop_gap_s=GAP_S)
    tables = {"state_every_s": STATE_EVERY_S, "labels": {"site": watch.site}, "source": [source]}
    return observer_config(layout, watch.name, SPEED, **tables)


def coordinator(layout: Layout, rounds: int) -> dict[str, Any]:
    """The coordinator's configuration: it exports a second version, and rollouts are manual."""
    return coordinator_config(
        layout,
        keep_versions=rounds + 1,
        export={"every_rounds": first_version(rounds)},
        rollout={"mode": "manual", "soak_s": 1.0, "deadline_s": 90.0},
    )


def fault_of(one: spar_fleet.FaultyRecording) -> tuple[float, float] | None:
    """When its gyroscope is silent, in seconds of its recording."""
    return next(((fault.start_s, fault.end_s) for fault in one.faults), None)
