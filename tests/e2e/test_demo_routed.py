"""The routed demo for real, with half of its cast: processes, a sensor plugged in, bundles by route."""

import asyncio
import io
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from lichen_lab.demo import plans
from lichen_lab.demo.core import run, scenario
from lichen_lab.demo.core.screen import Screen
from lichen_lab.demo.plans.disentafl import devices
from lichen_lab.demo.plans.disentafl.results import DisentaflResults
from lichen_lab.simulation.data.sets import spar
from protocol.errors import Misconfigured

pytest.importorskip("iotcore", reason="the lab's broker")
RUN_S = 280
ROUNDS = 5
# How well it predicts after so few rounds is left to chance; all else must hold.
LEARNING = ("above chance", "alone", "predicts without torch", "gains by sharing")


@pytest.mark.long
@pytest.mark.timeout(RUN_S + 20)
def test_each_kind_of_watch_moves_and_ends_with_its_own_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        spar.locate()
    except Misconfigured as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    few = tuple(watch for watch in devices.DEVICES if watch.name in {"cladonia", "usnea", "xanthoria"})
    monkeypatch.setattr(devices, "DEVICES", few)
    out = tmp_path / "demo"
    options = scenario.Options(out, rounds=ROUNDS, speed=60.0, study=False, timeout_s=RUN_S - 20)
    told = io.StringIO()
    with Screen(Console(file=told, width=200)) as screen:
        asyncio.run(run.run(plans.demo("disentafl"), options, screen))
    results = DisentaflResults.load(out / "report.json")
    failed = [c for c in results.checks if c.must and not c.ok and not any(w in c.what for w in LEARNING)]
    assert failed == [], told.getvalue()
    named = {device.name: device for device in results.devices}
    took_part = [move.round for move in named["cladonia"].moves]
    assert took_part[-2:] == [ROUNDS - 1, ROUNDS], "a round may open before all processes are up"
    assert took_part == list(range(took_part[0], ROUNDS + 1))
    assert {move.modalities for move in named["cladonia"].moves} == {("accelerometer",)}
    changes = named["xanthoria"].changes
    assert [move.modalities for move in changes] == [("accelerometer",), ("accelerometer", "gyroscope")]
    assert named["xanthoria"].starts == 1
    bundles = {name: device.bundle for name, device in named.items()}
    assert len({bundle.digest for bundle in bundles.values() if bundle}) == len(named), "one for each kind"
    sizes = {name: bundle.size for name, bundle in bundles.items() if bundle}
    assert sizes["cladonia"] < sizes["physcia"] < sizes["usnea"]
    assert {name: set(device.scores) for name, device in named.items()} == {
        name: set(device.targets) for name, device in named.items()
    }
    assert results.observer is not None
    assert results.observer.torch_free
    assert results.observer.values, "it says how fast the arm turns, without a gyroscope"
    assert (named["cladonia"].down or 0) < 0.6 * results.supernet
    assert results.supernet_up is not None
    assert (named["cladonia"].up or 0) < results.supernet_up
    assert "<svg" in (out / "report.html").read_text()
    running_still = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert [words for words in running_still if str(out) in words] == []
