from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings, InferSettings
from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.windows.quality.meter import ScoredWindows
from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.suite import idle_traffic, observer, serving
from lichen_lab.benchmarks.suite.device import round_cost
from lichen_lab.benchmarks.suite.serving import child
from lichen_lab.benchmarks.support.tasks import demo_task
from lichen_lab.simulation.processes.environment import Environment
from protocol.bundle import BundleManifest
from protocol.errors import Transient


def by_metric(rows: list[ResultRow]) -> dict[str, float]:
    return {row.metric: row.mean for row in rows}


def test_bench_idle_extrapolates_pings_seen_and_states_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_traffic, "watch", lambda _every, _watch, _say: ([90, 400], [2, 2, 2, 2], 8))
    found = by_metric(idle_traffic.run(quick=False, say=print))
    states = 86400 / AgentSettings(fleet="f", device="d").state_idle_s
    pings = 4 * 86400 / 180
    assert found["of it at rest, KB"] == pytest.approx(2 * pings / 1000)
    assert found["sent a day, KB"] == pytest.approx((2 * pings + 400 * states) / 1000)
    headers = 40 * (pings + states) / 1000
    assert found["sent a day with TCP/IP headers, KB"] == pytest.approx(found["sent a day, KB"] + headers)


def test_bench_idle_an_agent_that_talks_at_rest_is_not_flattered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_traffic, "watch", lambda _every, _watch, _say: ([400], [400] * 125, 0))
    rows = idle_traffic.run(quick=False, say=print)
    goal = idle_traffic.BENCH.goals[0]
    assert [goal.met(row) for row in rows if goal.concerns(row)] == [False]


def test_bench_device_figures_leave_the_first_round_out() -> None:
    size = {"numbers": 40, "peak_bytes": 3_000_000}
    then = [{"round": 1, "train_cpu_s": 5.0, "process_cpu_s": 7.0, **size, "peak_bytes": 4_000_000}]
    later = [{"round": r, "train_cpu_s": 1.0, "process_cpu_s": 7.0 + r, **size} for r in (2, 3)]
    found = round_cost.figures(12.5, then + later, 10.0, then)
    assert found["CPU s a round beyond training"] == pytest.approx((2.5 - 2.0) / 2)
    assert found["CPU s a round in training"] == 1.0
    assert found["CPU s of the worker's start (once)"] == 2.0
    assert found[round_cost.WORKER_PEAK] == 4.0
    assert found[round_cost.NUMBERS] == 40


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
    memories = {"process": iter((80.0, 82.0, 84.0)), "none": iter((60.0, 60.0, 66.0))}

    def measure(_place: Environment, isolation: str, _say: Any) -> dict[str, list[float]]:
        return {"RSS, predicting, MB": [next(memories[isolation])], "a start, s": [1.0, 2.0]}

    monkeypatch.setattr(observer, "environment", lambda _wanted: place)
    monkeypatch.setattr(observer, "measure", measure)
    monkeypatch.setattr(observer, "_contents", lambda _place: ({"numpy": 190.0, "lichen": 10.0}, 200.0))
    rows = observer.run(quick=False, say=print)
    place_, apart, within = "environment with lichen[infer] alone", "a process for the model", "in the agent"
    assert {(row.setting, row.metric): row.mean for row in rows} == {
        (f"{place_}, {apart}", "RSS, predicting, MB"): 82.0,
        (f"{place_}, {apart}", "a start, s"): 1.5,
        (f"{place_}, {within}", "RSS, predicting, MB"): 62.0,
        (f"{place_}, {within}", "a start, s"): 1.5,
        (place_, "packages installed"): 2.0,
        (place_, "site-packages, MB"): 200.0,
    }
    assert (rows[0].sd, rows[0].n, rows[1].n) == (2.0, 3, 6)


def test_bench_serving_tells_what_the_agent_s_way_adds_to_a_bare_run() -> None:
    times = {"run": 0.001, "predict": 0.0011, "ran": 0.00125, "asked": 0.0013, "whole": 0.002}
    found = serving._latencies({name: [seconds] * 20 for name, seconds in times.items()})
    assert found["added to the model's part of the agent's way, %"] == pytest.approx(4)
    assert found["added to session.run, %"] == pytest.approx(30)
    assert found["to the line in the file, ms"] == pytest.approx(2)
    assert not serving.BENCH.goals[0].met(ResultRow("d", "m", "s", "added to session.run, %", 30))


def test_bench_serving_compares_the_first_looks_at_the_memory_with_the_last() -> None:
    looks = [{"all": 100.0 + n, "agent": 50.0, "processes": 3, "files": 20} for n in range(21)]
    found = serving._growth({"looks": looks, "swap": [0.05] * 100})
    assert found["growth of PSS over the swaps, %"] == pytest.approx(100 * (118 / 102 - 1))
    assert found["growth of the agent's own process, %"] == 0
    assert found["open files more than at first"] == 0


class _Answering:
    """Takes a window, and says at once what was seen of it."""

    def __init__(self, seen: BatchObservation) -> None:
        self.taken: list[ScoredWindows] = []
        self.watch: Any = None
        self._seen = seen

    def enqueue(self, judged: ScoredWindows) -> None:
        self.taken.append(judged)
        self.watch(self._seen)


@pytest.mark.parametrize("error", ["", "it has gone"])
async def test_bench_serving_asks_for_one_window_and_takes_no_failure_for_an_answer(
    tmp_path: Path, error: str
) -> None:
    task = demo_task()
    manifest = BundleManifest(
        task=task.name, method="qqr", version=1, round=1, base="1" * 64, labels=task.labels,
        modalities=task.modalities, inputs=("gyroscope", "present"), outputs=("probabilities",),
    )  # fmt: skip
    stand = child.Stand(task, ZygoteClient(), InferSettings(output=tmp_path / "predictions.jsonl"))
    seen = BatchObservation("0" * 64, manifest, 1, 0.25, error)
    stand.inference = answering = _Answering(seen)  # type: ignore[assignment]
    answering.watch = stand.observe
    if error:
        with pytest.raises(RuntimeError, match=error):
            await stand.ask(stand.window())
        return
    first, second = stand.window(), stand.window()
    assert (await stand.ask(first)).latency_s == 0.25
    assert not np.array_equal(first.x["gyroscope"], second.x["gyroscope"])
    [judged] = answering.taken
    assert [x_BCT.shape for x_BCT in judged.windows.x.values()] == [(1, 3, 128)] * 2
    assert judged.quality.quality_BM.shape == judged.windows.present_BM.shape == (1, 2)
