"""A link that swallows everything, at every step of a round, over Mosquitto.

Cut and slow links, which break less, are the other two rows of ``lichen bench matrix``; the link alone is cut
and slowed in ``test_runtime_bad_networks.py``.
"""

from pathlib import Path

import pytest

from tests.support.lab.matrix_model import model, survives

__all__ = ["model"]


@pytest.mark.long
def test_a_black_hole_at_any_step_costs_time_and_nothing_else(model: Path) -> None:
    row = survives("black-hole", model)
    assert row.deaths == [], "a bad link kills no daemon"
