"""The demo without labels for real, with half of its cast: processes, weights, fine-tuning, the observer."""

import asyncio
import io
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from edge_agent.windows.store import WindowStore
from lichen_lab.demo import plans
from lichen_lab.demo.core import run, scenario
from lichen_lab.demo.core.screen import Screen
from lichen_lab.demo.plans.tactfl import comparison, devices, steps
from lichen_lab.demo.plans.tactfl.results import TactflResults
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from protocol.errors import Misconfigured

pytest.importorskip("iotcore", reason="the lab's broker")
RUN_S = 150
ROUNDS = 2
# How well it learns in two rounds, and whom it trusts by then, is left to chance; all else must hold.
LEARNING = ("weighs least", "is above", "predicts on the observing")


@pytest.mark.long
@pytest.mark.timeout(RUN_S + 20)
def test_a_fleet_without_labels_is_weighed_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        spar.locate()
    except Misconfigured as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    few = tuple(watch for watch in devices.DEVICES if watch.name in {"cladonia", "evernia", "xanthoria"})
    monkeypatch.setattr(devices, "DEVICES", few)
    monkeypatch.setattr(devices, "CONFIG", {**devices.CONFIG, "epochs": 1, "finetune_epochs": 2})
    monkeypatch.setattr(spar_fleet, "OBSERVER_SPEED", 60.0)
    monkeypatch.setattr(steps, "SEEDS", 1)
    out = tmp_path / "demo"
    options = scenario.Options(out, rounds=ROUNDS, speed=100.0, timeout_s=RUN_S - 10)
    told = io.StringIO()
    with Screen(Console(file=told, width=200)) as screen:
        asyncio.run(run.run(plans.demo("tactfl"), options, screen))
    results = TactflResults.load(out / "report.json")
    failed = [c for c in results.checks if c.must and not c.ok and not any(w in c.what for w in LEARNING)]
    assert failed == [], told.getvalue()
    assert [one.round for one in results.weighed] == [1, 2]
    last = results.weighed[-1]
    assert {part: set(weights) for part, weights in last.weights.items()} == {
        "encoder/accelerometer": {"cladonia", "evernia", "xanthoria"},
        "encoder/gyroscope": {"cladonia", "xanthoria"},
    }
    for part, weights in last.weights.items():
        assert sum(weights.values()) == pytest.approx(1, abs=1e-4)
        assert set(last.similarity[part]) == set(weights)
    assert [rival.name for rival in results.rivals] == [comparison.RANDOM, comparison.LABELLED]
    assert [len(rival.accuracies) for rival in results.rivals] == [1, 1]
    stored = WindowStore(scenario.Layout(out, 0).state("cladonia") / "store", devices.task(ROUNDS), 1 << 28)
    try:
        windows = stored.recent(4096, labelled=False)
    finally:
        stored.close()
    assert windows.context is not None
    assert (windows.context.points_BM[:, 0] > windows.x["accelerometer"].shape[2]).any()
    assert results.observer is not None
    assert results.observer.predictions
    assert results.observer.torch_free
    assert "<svg" in (out / "report.html").read_text()
    running_still = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert [words for words in running_still if str(out) in words] == []
