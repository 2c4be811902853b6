"""Disks that are full or fail, at every step of a round: real ext4, mounted by the test (root)."""

from pathlib import Path

import pytest

from lichen_lab.benchmarks.fault_injection.harness import disks
from tests.support.lab.matrix_model import model, survives

__all__ = ["model"]

if _WHY := disks.why_unavailable():
    pytest.skip(f"SKIPPED LOUDLY: no disk of their own for these tests: {_WHY}", allow_module_level=True)


@pytest.mark.long
def test_a_full_disk_at_any_step_costs_time_and_nothing_else(model: Path) -> None:
    row = survives("disk-full", model)
    assert row.deaths == [], "a full disk kills no daemon"


@pytest.mark.long
def test_a_failed_disk_at_any_step_costs_time_and_nothing_acknowledged(model: Path) -> None:
    """Read-only at once and unsynced writes gone: what an operator must mend; then all goes on."""
    survives("read-only", model)
