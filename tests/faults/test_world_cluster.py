"""A coordinator of several processes in the simulated world, and whether missing safeguards are noticed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import coordinator.intake.intake_table
import coordinator.lease.keeper
import lichen_lab.simulation.deterministic.cluster.session
from coordinator.intake.intake_table import IntakeTable
from coordinator.intake.outside_updates import OutsideUpdates
from coordinator.storage import schema
from coordinator.storage.engines.postgres import PostgresEngine
from lichen_lab.simulation.deterministic.cluster.plan import draw_cluster
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.scenario.scenario import FaultKind, ScheduledFault, Weather
from lichen_lab.simulation.deterministic.world import run_seed

SEEDS = 16
CALM = {
    "weather": Weather(0.01),
    "faults": (),
    "work_fails": 0.0,
    "sensor_fails": 0.0,
    "window_every_s": 8.0,
    "train_s": 2.0,
    "lacking": (),
    "goes_on": False,
    "evaluate": False,
    "export": False,
    "store_slow": 0.0,
    "devices": ("dev-1", "dev-2", "dev-3"),
}
SLOW = {"store_slow": 0.2, "head": 16, "chunk_bytes": 65536}
CROWD = SLOW | {
    "store_slow": 0.12,
    "goes_on": True,
    "faults_end_s": 200.0,
    "spread_s": 0.0,
    "rounds": {"quorum": 0.5, "min_devices": 1, "count": 6},
}
"""Many updates are on their way into the database while their round closes."""
STOPS = tuple(
    ScheduledFault(float(at), FaultKind.FREEZE, f"lead-{1 + n % 2}", 12.0)
    for n, at in enumerate(range(5, 45, 10))
)
LOST = tuple(ScheduledFault(8.0 + n / 4, FaultKind.COMMIT_LOST, f"ingest-{1 + n % 3}") for n in range(128))

Patch = Callable[[pytest.MonkeyPatch], None]


def world(seed: int, **changes: Any) -> WorldOutcome:
    """A calm world with some changes; those of its rounds are below ``rounds``."""
    chosen = draw_cluster(seed)
    rounds = {"count": 2, "deadline_s": 20.0, "devices_per_round": None} | changes.pop("rounds", {})
    given = {**CALM, "rounds": chosen.rounds.model_copy(update=rounds), **changes}
    return run_seed(seed, scenario=replace(chosen, **given))


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A leader's transactions do not ask whether it still leads."""
    patch.setattr(coordinator.lease.keeper, "fence", lambda *_: lambda _: None)


def no_lock_on_the_intake(patch: pytest.MonkeyPatch) -> None:
    """The round that is open is read, and may be closed before the updates are written."""
    read = coordinator.intake.intake_table._read
    patch.setattr(
        coordinator.intake.intake_table, "_read", lambda connection, **_: read(connection, lock=False)
    )


def no_unique_key(patch: pytest.MonkeyPatch) -> None:
    """The database takes two updates of a device in a round."""
    translated = lichen_lab.simulation.deterministic.cluster.session.translated

    def without(sql: str) -> tuple[str, bool]:
        words, locks = translated(sql)
        if words.lstrip().startswith("CREATE TABLE updates"):
            words = words.replace("PRIMARY KEY (round, device)", "CHECK (1)")
        return words, locks

    patch.setattr(lichen_lab.simulation.deterministic.cluster.session, "translated", without)
    patch.setattr(
        IntakeTable,
        "_insert",
        lambda _self, connection, rows: connection.execute(schema.updates.insert(), rows),
    )


def a_round_that_is_closed_after_a_look(patch: pytest.MonkeyPatch) -> None:
    """The leader counts what has arrived, and closes the round without closing the intake first."""

    def close(self: OutsideUpdates, state: Any) -> Any:
        self.held, self._written = True, None
        return self._table.arrivals(state.round)

    patch.setattr(OutsideUpdates, "close", close)


def a_lost_answer_that_counts_as_a_commit(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks up whether a commit without an answer took place."""

    def settle(self: PostgresEngine) -> None:
        self._seq += 1

    patch.setattr(PostgresEngine, "_settle", settle)


MUTATIONS: dict[Patch, tuple[dict[str, Any], str]] = {
    no_fence: ({"faults": STOPS}, "a leader of epoch . wrote .* in epoch"),
    no_lock_on_the_intake: (CROWD, "accepted update .* is gone|is made of"),
    no_unique_key: (
        CROWD | {"weather": Weather(0.01, duplicate=0.2), "resend_s": 2.0},
        "is counted 2 times",
    ),
    a_round_that_is_closed_after_a_look: (CROWD, "accepted update .* is gone|is made of"),
    a_lost_answer_that_counts_as_a_commit: ({"faults": LOST}, "gets its receipt before it is in the journal"),
}
"""Mutation -> what makes calm worlds need the safeguard, and what is said without it."""


def first_failure(seeds: int, **changes: Any) -> tuple[int, str]:
    """The first seed that fails, and its violation; (-1, "") if none does."""
    for seed in range(seeds):
        outcome = world(seed, **changes)
        if outcome.violation:
            return seed, outcome.violation
    return -1, ""


@pytest.mark.long
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda patch: patch.__name__)
def test_world_cluster_a_missing_safeguard_is_seen(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, words = MUTATIONS[mutate]
    with monkeypatch.context() as patch:
        mutate(patch)
        seed, violation = first_failure(SEEDS, **changes)
    assert seed >= 0, f"{SEEDS} seeds pass without it: the simulation is blind to this"
    assert re.search(words, violation)
    assert world(seed, **changes).violation == ""


def test_world_cluster_no_promise_is_broken() -> None:
    for seed in (1, 8):
        outcome = run_seed(seed, scenario=draw_cluster(seed))
        assert not outcome.violation, "\n".join([outcome.violation, *outcome.trace])
        assert outcome.counted


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_world_cluster_no_promise_is_broken_in_more_seeds() -> None:
    for seed in range(100, 140):
        outcome = run_seed(seed, scenario=draw_cluster(seed))
        assert not outcome.violation, "\n".join([f"seed {seed}: {outcome.violation}", *outcome.trace])


@pytest.mark.long
def test_world_cluster_a_stopped_leader_is_replaced_and_the_task_ends() -> None:
    lines: list[str] = []
    chosen = draw_cluster(6)
    scenario = replace(chosen, **{**CALM, "faults": STOPS})
    outcome = run_seed(6, scenario=scenario, trace=lines.append)
    assert outcome.violation == ""
    assert outcome.faults[FaultKind.FREEZE.value]
    leaders = {line.split()[2] for line in lines if " leads, epoch " in line}
    assert leaders == {"lead-1", "lead-2"}
    assert run_seed(6, scenario=scenario).mark == outcome.mark, "the same seed gives the same trace"
