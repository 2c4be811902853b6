"""Rounds end when nothing more is gained, and not before."""

import numpy as np
import pytest

from coordinator.aggregation.early_end import CHANGE, reason, step
from coordinator.round_machine import table
from coordinator.round_machine.commands import Export, Finish
from coordinator.round_machine.events import (
    EvaluationDone,
    Resumed,
    RoundPhase,
    RoundState,
    Rules,
    VersionMade,
)
from protocol.tasks.rounds import Rounds
from tests.support.agent.data import toy_task

PATIENT = Rounds(count=100, patience=3, gain=0.01)


def history(*values, metric="accuracy"):
    return [{metric: value, "loss": 1.0} for value in values]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ((0.6, 0.6, 0.6, 0.6), True),
        ((0.5, 0.6, 0.6, 0.605, 0.609), True),
        ((0.5, 0.6, 0.6, 0.605, 0.61), False),
        ((0.6, 0.5, 0.4, 0.62), False),
        ((0.6, 0.5, 0.4), False),
        ((0.1, 0.2, 0.3, 0.4, 0.5), False),
        ((), False),
    ],
)
def test_it_waits_for_a_gain_over_all_earlier_versions(values, ends):
    assert bool(reason(history(*values), PATIENT)) is ends
    assert not reason(history(*values), Rounds(count=100, patience=0))


def test_the_words_name_metric_gain_and_patience():
    assert reason(history(0.6, 0.6, 0.6, 0.6), PATIENT) == "accuracy gained less than 0.01 in 3 versions"
    assert "mrr" in reason(history(0.6, 0.6, 0.6, 0.6, metric="mrr"), PATIENT)
    assert "the longest" in reason(history(1.0, 0.04, 0.03, 0.02, metric=CHANGE), PATIENT)
    assert not reason(history(1.0, 0.04, 0.06, 0.02, metric=CHANGE), PATIENT)
    assert not reason(history(1.0, 1.0, 1.0, 1.0, metric="something"), PATIENT)


def test_a_step_is_relative_and_looks_at_trained_parts_alone():
    task = toy_task(method="qqr")
    before = {
        "head": {"head/w": np.full((2, 2), 2.0, np.float32)},
        "classes": {"classes/trained": np.ones(3)},
    }
    after = {
        "head": {"head/w": np.full((2, 2), 2.5, np.float32)},
        "classes": {"classes/trained": np.zeros(3)},
    }
    assert step(task, before, after) == {CHANGE: 0.25}
    assert step(task, before, before) == {CHANGE: 0.0}
    never = task.model_copy(update={"rounds": Rounds(patience=0)})
    assert step(never, before, after) == {}


RULES = Rules(rounds=50, deadline_s=10, evaluate=True, export=True, patience=3)
EVALUATING = RoundState(phase=RoundPhase.EVALUATING, round=7, version=7, manifest="m")


def test_an_end_exports_the_version_and_finishes():
    state, commands = table.apply(RULES, EVALUATING, EvaluationDone(version=7, ended="no gain"), 1.0)
    assert state.phase is RoundPhase.EXPORTING
    assert [type(one) for one in commands] == [Export]
    done = table.apply(
        RULES, state.model_copy(update={"phase": RoundPhase.EVALUATING}), EvaluationDone(version=7), 1
    )
    assert done[0].ended == "no gain"
    without = RULES.model_copy(update={"export": False})
    state, commands = table.apply(without, EVALUATING, EvaluationDone(version=7, ended="no gain"), 1.0)
    assert (state.phase, state.ended) == (RoundPhase.DONE, "no gain")
    assert [type(one) for one in commands] == [Finish]


def test_without_evaluation_the_version_itself_may_be_the_last():
    folding = RoundState(phase=RoundPhase.AGGREGATING, round=7, version=6)
    rules = RULES.model_copy(update={"evaluate": False, "export": False})
    state, _ = table.apply(rules, folding, VersionMade(version=7, manifest="m", ended="still"), 1.0)
    assert state.phase is RoundPhase.DONE
    state, _ = table.apply(rules, folding, VersionMade(version=7, manifest="m"), 1.0)
    assert state.phase is RoundPhase.WAITING


def test_a_restart_does_not_begin_again_unless_the_operator_asks_for_it():
    over = RoundState(phase=RoundPhase.DONE, round=7, version=7, manifest="m", ended="no gain")
    assert table.apply(RULES, over, Resumed(), 1.0)[0].phase is RoundPhase.DONE
    on = RULES.model_copy(update={"patience": 0})
    state, _ = table.apply(on, over, Resumed(), 1.0)
    assert (state.phase, state.round, state.ended) == (RoundPhase.WAITING, 8, "")
