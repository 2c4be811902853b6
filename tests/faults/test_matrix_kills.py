"""SIGKILL for broker, agent and coordinator at every step of a round, over Mosquitto."""

from pathlib import Path

import pytest

from tests.support.lab.matrix_model import model, survives

__all__ = ["model"]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill-broker", "kill-agent", "kill-coordinator"])
def test_a_kill_at_any_step_costs_time_and_nothing_else(fault: str, model: Path) -> None:
    row = survives(fault, model)
    assert row.deaths == [], "nobody else died of it"
