"""The real coordinator and the real agents, under faults that a seed decides."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lichen_lab.simulation.deterministic.cluster.plan import draw_cluster
from lichen_lab.simulation.deterministic.machine.node import Node
from lichen_lab.simulation.deterministic.scenario.scenario import (
    COORDINATOR,
    FaultKind,
    ScheduledFault,
    Weather,
    draw,
)
from lichen_lab.simulation.deterministic.world import run_seed

ROOT = Path(__file__).parents[2]
SEEDS = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # a seed has no smaller one: its trace says what happened
    suppress_health_check=list(HealthCheck),
)


@settings(SEEDS, max_examples=8)
@given(seed=st.integers(0, 2**31 - 1))
def test_world_no_promise_is_broken(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, "\n".join([outcome.violation, *outcome.trace])


@pytest.mark.long
@pytest.mark.timeout(1200)
@SEEDS
@given(seed=st.integers(0, 2**31 - 1))
def test_world_no_promise_is_broken_in_many_seeds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violation, "\n".join([outcome.violation, *outcome.trace])


@pytest.mark.long
def test_world_a_seed_replays_to_the_letter_in_another_process() -> None:
    outcome = run_seed(7)
    code = "from lichen_lab.simulation.deterministic.world import run_seed; print(run_seed(7).mark)"
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.strip() == outcome.mark


def test_world_a_calm_one_finishes_soon_and_counts_everybody() -> None:
    calm = replace(draw(3), faults=(), weather=Weather(0.01), work_fails=0.0, sensor_fails=0.0)
    outcome = run_seed(3, scenario=calm)
    assert not outcome.violation
    assert outcome.virtual_s < 120
    assert not outcome.faults
    assert outcome.counted >= calm.rounds.count * calm.rounds.min_devices


@pytest.mark.long
def test_world_updates_that_rot_after_their_receipt_are_reported_and_asked_for_again() -> None:
    """A frame lies for a moment only, between its receipt and the fold: it must be hit there."""
    lost = 0
    for seed in range(3, 7):
        drawn = draw(seed)
        wanted = {"deadline_s": 60.0, "quorum": 1.0, "devices_per_round": None}
        rounds = drawn.rounds.model_copy(update=wanted)
        early = ScheduledFault(
            1.0, FaultKind.ROT, COORDINATOR
        )  # nothing is there yet: the first frame that comes is hit
        calm = replace(drawn, rounds=rounds, faults=(early,), weather=Weather(0.01), train_s=8.0)
        outcome = run_seed(seed, scenario=calm)
        assert not outcome.violation, "\n".join([outcome.violation, *outcome.trace])
        lost += outcome.lost
    assert lost >= 2, "no rotten frame was ever found: the worlds rot what nobody reads"


def test_world_a_task_that_nobody_can_finish_is_seen(monkeypatch) -> None:
    """Liveness is checked: with a disk that stays full the world says what it waits for."""
    monkeypatch.setattr("lichen_lab.simulation.deterministic.world.PATIENCE_S", 60.0)
    monkeypatch.setattr(Node, "trouble", lambda node, _code: setattr(node, "_trouble", errno.ENOSPC))
    full = ScheduledFault(0.1, FaultKind.DISK_FULL, COORDINATOR, 1.0)
    calm = replace(
        draw(3), faults=(full, ScheduledFault(0.2, FaultKind.KILL, COORDINATOR, 0.1)), weather=Weather(0.01)
    )
    outcome = run_seed(3, scenario=calm)
    assert "and still" in outcome.violation


def test_world_seeds_differ() -> None:
    assert len({draw(seed).faults for seed in range(50)}) == 50
    kinds = {fault.kind for seed in range(200) for one in (draw, draw_cluster) for fault in one(seed).faults}
    assert kinds == set(FaultKind), "every kind of fault is drawn"
