"""The fan-in bench with few devices: real processes, real Mosquitto, every update with its receipt."""

import pytest

from lichen_lab.benchmarks.suite.coordinator import fan_in
from tests.support.network.brokers import require_mosquitto


@pytest.mark.long
def test_bench_fanin_counts_receipts_and_syncs() -> None:
    require_mosquitto()
    said: list[str] = []
    reports = fan_in.measure(12, 1, said.append)
    assert [report["round"] for report in reports] == [1, 2], "one storm, one at a rate"
    assert all(len(report["took_s"]) == 12 and min(report["took_s"]) > 0 for report in reports)
    figures = fan_in._figures(12, reports)
    assert all(1 <= mean <= 12 for mean in figures["updates in a transaction"])
    assert all(0 < syncs < 12 for syncs in figures["syncs an update"])
    assert figures["updates sent again"] == [0.0, 0.0]
    assert "round 1: 12 receipts" in said[1]
