"""Secure rounds and rounds with privacy of real daemons, under faults and lies that a seed decides."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.privacy.promise import require_privacy
from coordinator.secure_aggregation.task_check import require_secure
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.protected import fleet
from lichen_lab.simulation.deterministic.protected.plan import (
    SECURE_STAGES,
    VERSION,
    draw_private,
    draw_secure,
    draw_shared,
)
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario, Weather
from lichen_lab.simulation.deterministic.scenario.toy_method import toy_task
from lichen_lab.simulation.deterministic.world import run_seed
from models import registry

ROOT = Path(__file__).parents[2]
DRAWS = {"secure": draw_secure, "private": draw_private, "shared": draw_shared}


def kept(kind: str, seed: int) -> WorldOutcome:
    outcome = run_seed(seed, scenario=DRAWS[kind](seed))
    assert not outcome.violation, "\n".join([outcome.violation, *outcome.trace])
    return outcome


@pytest.mark.parametrize(("kind", "seed"), [("secure", 3), ("private", 1), ("shared", 3)])
def test_world_no_promise_of_protected_rounds_is_broken(kind: str, seed: int) -> None:
    assert kept(kind, seed).counted


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", DRAWS)
def test_world_no_promise_of_protected_rounds_is_broken_in_many_seeds(kind: str) -> None:
    """The worlds come to what they are for: sums are opened, or folds are repeated."""
    found: Counter[str] = Counter()
    for seed in range(100, 124):
        found += kept(kind, seed).faults
    assert found["fold repeated" if kind == "private" else "sum opened"], found


@pytest.mark.long
@pytest.mark.parametrize("kind", DRAWS)
def test_world_a_protected_seed_replays_to_the_letter_in_another_process(kind: str) -> None:
    outcome = kept(kind, 5)
    code = f"from tests.property.test_world_protected_seeds import kept; print(kept({kind!r}, 5).mark)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == outcome.mark


def calm(scenario: Scenario) -> Scenario:
    """The same fleet without faults and lies."""
    assert scenario.protection is not None
    honest = replace(scenario.protection, hostile=(), stage_faults=())
    still = replace(scenario, faults=(), weather=Weather(0.01), protection=honest)
    return replace(still, work_fails=0.0, sensor_fails=0.0)


@pytest.mark.long
def test_world_a_calm_secure_fleet_opens_the_sum_of_every_round() -> None:
    for seed in range(3):
        scenario = calm(draw_secure(seed))
        outcome = run_seed(seed, scenario=scenario)
        assert not outcome.violation
        assert outcome.faults == {"sum opened": scenario.rounds.count}


@pytest.mark.long
def test_world_devices_hear_that_the_sum_of_their_round_stayed_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hostile device's vector is random: no sum with it can be used. A world ends when all have heard."""
    monkeypatch.setattr(fleet, "_GARBAGE", 1.0)
    closed = 0
    for seed in (0, 2, 3):
        drawn = draw_secure(seed)
        assert drawn.protection is not None
        assert drawn.protection.hostile
        scenario = replace(calm(drawn), protection=replace(drawn.protection, stage_faults=()))
        outcome = run_seed(seed, scenario=replace(scenario, goes_on=True, faults_end_s=200.0))
        assert not outcome.violation
        opened = outcome.faults.get("sum opened", 0)  # its forged messages may keep it out of one
        assert outcome.faults["sum stayed closed"] + opened == scenario.rounds.count
        assert bool(outcome.counted) == bool(opened)
        closed += outcome.faults["sum stayed closed"]
    assert closed > 3


def test_world_tasks_of_protected_worlds_are_ones_that_a_person_may_write() -> None:
    for draw in DRAWS.values():
        for seed in range(150):
            scenario = draw(seed)
            task = toy_task(scenario.rounds, scenario.uplink, 1, scenario.protection)
            spec = registry.method(task.method)
            require_secure(task, spec)
            require_privacy(task, spec)


def test_world_protected_seeds_differ_and_have_every_stage() -> None:
    for draw, stages in ((draw_secure, SECURE_STAGES), (draw_private, ("masked", VERSION))):
        drawn = [draw(seed).protection for seed in range(150)]
        struck = {planned.stage for one in drawn if one for planned in one.stage_faults}
        assert struck == set(stages)
        assert any(one and one.hostile for one in drawn)
