from pathlib import Path
from typing import Any

import pytest

from edge_agent.config import AgentSettings
from lichen.bench import device, idle, observer
from lichen.bench.result import Row
from lichen.demo.observer import Environment
from protocol.errors import Transient


def by_metric(rows: list[Row]) -> dict[str, float]:
    return {row.metric: row.mean for row in rows}


def test_bench_idle_extrapolates_pings_seen_and_states_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "watch", lambda _every, _watch, _say: ([90, 400], [2, 2, 2, 2], 8))
    found = by_metric(idle.run(quick=False, say=print))
    states = 86400 / AgentSettings(fleet="f", device="d").state_idle_s
    pings = 4 * 86400 / 180
    assert found["of it at rest, KB"] == pytest.approx(2 * pings / 1000)
    assert found["sent a day, KB"] == pytest.approx((2 * pings + 400 * states) / 1000)
    headers = 40 * (pings + states) / 1000
    assert found["sent a day with TCP/IP headers, KB"] == pytest.approx(found["sent a day, KB"] + headers)


def test_bench_idle_an_agent_that_talks_at_rest_is_not_flattered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "watch", lambda _every, _watch, _say: ([400], [400] * 125, 0))
    rows = idle.run(quick=False, say=print)
    goal = idle.BENCH.goals[0]
    assert [goal.met(row) for row in rows if goal.concerns(row)] == [False]


def test_bench_device_figures_leave_the_first_round_out() -> None:
    then = [{"round": 1, "train_cpu_s": 5.0, "process_cpu_s": 7.0}]
    later = [{"round": r, "train_cpu_s": 1.0, "process_cpu_s": 7.0 + r} for r in (2, 3)]
    found = device._figures(12.5, then + later, 10.0, then)
    assert found["CPU s a round beyond training"] == pytest.approx((2.5 - 2.0) / 2)
    assert found["CPU s a round in training"] == 1.0
    assert found["CPU s of the worker's start (once)"] == 2.0


class _WithTorch(Environment):
    def torch_free(self) -> bool:
        return False


def test_bench_observer_does_not_measure_where_torch_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _WithTorch(Path("python"), own=True, how="a test")
    monkeypatch.setattr(observer, "environment", lambda _wanted: place)
    with pytest.raises(Transient, match="can import torch"):
        observer.run(quick=True, say=print)


def test_bench_observer_reports_the_spread_and_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(Environment):
        def torch_free(self) -> bool:
            return True

    place = Bare(Path("python"), own=True, how="a test")
    memories = iter((80.0, 82.0, 84.0))

    def measure(_place: Environment, _say: Any) -> dict[str, float]:
        return {"RSS, predicting, MB": next(memories)}

    monkeypatch.setattr(observer, "environment", lambda _wanted: place)
    monkeypatch.setattr(observer, "measure", measure)
    monkeypatch.setattr(observer, "_contents", lambda _place: (["numpy", "lichen"], 200.0))
    rows = observer.run(quick=False, say=print)
    assert by_metric(rows) == {
        "RSS, predicting, MB": 82.0,
        "packages installed": 2.0,
        "site-packages, MB": 200.0,
    }
    assert (rows[0].sd, rows[0].n) == (2.0, 3)
    assert rows[0].setting == "environment with lichen[infer] alone"
