"""What the demo makes of the coordinator's history, and when it calls itself a success."""

from pathlib import Path

import pytest

from lichen_lab.demo.core.results import (
    Check,
    DeviceResults,
    ObservedPrediction,
    ObserverResults,
    RoundResult,
    take_devices,
)
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.qqr.checks import checks
from lichen_lab.demo.plans.qqr.results import QqrResults, Sizes
from lichen_lab.demo.plans.qqr.simulated_seeds import ALONE, FEDERATED, SeedLine
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from tests.support.lab.rolled_out import rolled_out

OPTIONS = Options(out=Path("unused"), rounds=2)


@pytest.fixture
def good() -> QqrResults:
    results = QqrResults(
        labels=spar.LABELS, modalities=("accelerometer", "gyroscope"), unseen=spar_fleet.UNSEEN
    )
    results.rounds = [RoundResult(1, 0.4, 10, 20, ("usnea",)), RoundResult(2, 0.8, 20, 40, ("usnea",))]
    results.devices = [
        DeviceResults("usnea", (5,), "", alone=0.5),
        DeviceResults("evernia", (2,), "", alone=0.6),
    ]
    seen = [ObservedPrediction(1.0, "PEN", "PEN", 0.9, {})]
    results.observer = ObserverResults("physcia", 7, "python", torch_free=True, how="own", predictions=seen)
    results.study = [SeedLine(1, FEDERATED, 0.8, 1.0), SeedLine(1, ALONE, 0.5, 1.0)]
    results.sizes = Sizes(1094, 26, 100, 95)
    results.rollout = rolled_out()
    return results


def worked(results: QqrResults) -> bool:
    results.checks = checks(results, OPTIONS)
    return results.worked


def test_all_well(good: QqrResults) -> None:
    assert worked(good)


def _no_observer(results: QqrResults) -> None:
    results.observer = None


def _silent(results: QqrResults) -> None:
    assert results.observer is not None
    results.observer.predictions = []


def _torch(results: QqrResults) -> None:
    assert results.observer is not None
    results.observer.torch_free = False


def _one_round(results: QqrResults) -> None:
    results.rounds.pop()


def _below(results: QqrResults) -> None:
    results.devices[0].alone = 0.99
    results.devices[1].alone = 0.99


def _no_baseline(results: QqrResults) -> None:
    for device in results.devices:
        device.alone = None


def _no_sizes(results: QqrResults) -> None:
    results.sizes = None


def _nothing_rolled_out(results: QqrResults) -> None:
    results.rollout = None


def _chaos_that_never_struck(results: QqrResults) -> None:
    results.chaos = True


def _guessing(results: QqrResults) -> None:
    assert results.observer is not None
    wrong = [ObservedPrediction(float(i), "PEN", "ABD", 0.9, {}) for i in range(2, 5)]
    results.observer.predictions = [*results.observer.predictions, *wrong]


def _heavy(results: QqrResults) -> None:
    results.sizes = Sizes(1094, 28, 100, 110)


def struck(results: QqrResults) -> None:
    results.chaos, results.struck, results.struck_round = True, "usnea", 1
    results.returned, results.reconnected = ("coordinator", "usnea"), True


def _coordinator_gone(results: QqrResults) -> None:
    struck(results)
    results.returned = ("usnea",)


def _device_gone(results: QqrResults) -> None:
    struck(results)
    results.returned = ("coordinator",)


def _silent_device(results: QqrResults) -> None:
    struck(results)
    results.reconnected = False
    results.rounds[-1].accepted = ("evernia",)


def _large(results: QqrResults) -> None:
    results.sizes = Sizes(2048, 26, 100, 95)


@pytest.mark.parametrize(
    "spoil",
    [
        _no_observer,
        _silent,
        _torch,
        _one_round,
        _below,
        _no_baseline,
        _no_sizes,
        _large,
        _guessing,
        _heavy,
        _coordinator_gone,
        _device_gone,
        _silent_device,
        _chaos_that_never_struck,
        _nothing_rolled_out,
    ],
)
def test_each_thing_that_fails_fails_the_demo(good: QqrResults, spoil) -> None:
    spoil(good)
    assert not worked(good)


def test_who_was_killed_and_delivered_again_came_back(good: QqrResults) -> None:
    struck(good)
    assert worked(good)
    assert "usnea delivered again in round 2" in good.checks[1].detail


def marks(results: QqrResults) -> dict[str, Check]:
    return {check.what: check for check in checks(results, OPTIONS)}


def test_memory_that_was_not_measured_is_not_ticked_and_rss_has_a_mark_of_its_own(good: QqrResults) -> None:
    assert good.observer is not None
    pss, rss = "its memory is under 90 MB as PSS", "the same as RSS"
    found = marks(good)
    assert (found[pss].ok, found[rss].ok) == (False, False)
    good.observer.memory_mb, good.observer.rss_mb = 88.6, 103.0
    found = marks(good)
    assert (found[pss].ok, found[rss].ok) == (True, False)
    assert "103 MB" in found[rss].detail


def test_a_margin_within_its_spread_is_no_tick(good: QqrResults) -> None:
    other = "zero input"
    good.study += [
        SeedLine(2, FEDERATED, 0.82, 1.0),
        SeedLine(1, other, 0.79, 1.0),
        SeedLine(2, other, 0.83, 1.0),
    ]
    found = marks(good)[f"in simulation, prototypes beat {other}"]
    assert (found.ok, found.must) == (False, False)
    assert "within the spread" in found.detail
    good.study[-2:] = [SeedLine(1, other, 0.70, 1.0), SeedLine(2, other, 0.71, 1.0)]
    assert marks(good)[f"in simulation, prototypes beat {other}"].ok


def test_an_update_is_counted_both_ways(good: QqrResults) -> None:
    found = marks(good)
    assert "26.0 %" in found["an int8 update is under 27 % of the same update in float32"].detail
    bare = found["and under 27 % of the bare parameters in float32"]
    assert (bare.ok, bare.must) == (False, False)
    assert "27.4 %" in bare.detail


def test_history_becomes_cumulative_bytes_accuracy_and_the_last_words_of_each_device(
    good: QqrResults,
) -> None:
    good.rounds, good.confusion = [], []
    update = {
        "device": "usnea",
        "lost": False,
        "samples": 30,
        "counts": {"gyroscope": [1, 2]},
        "quality": {"gyroscope": 0.5},
        "missing": {"gyroscope": 0.25},
    }
    lost = {**update, "device": "evernia", "lost": True}
    history = {
        "rounds": [
            {
                "round": 1,
                "bytes_up": 100,
                "bytes_down": 10,
                "metrics": {"accuracy": 0.4},
                "updates": [update],
            },
            {
                "round": 2,
                "bytes_up": 50,
                "bytes_down": 5,
                "metrics": {"accuracy": 0.6},
                "updates": [{**update, "samples": 40}, lost],
            },
            {"round": 3, "bytes_up": None, "bytes_down": None, "metrics": {}, "updates": []},
        ],
        "confusion": {"matrix": [[1, 0], [0, 1]]},
        "devices": [{"device": "usnea", "modalities": {"gyroscope": {"reasons": ["stuck"]}}}],
    }
    good.take(history)
    take_devices(good.devices, history)
    assert [(r.round, r.bytes_up, r.bytes_down) for r in good.rounds] == [(1, 100, 10), (2, 150, 15)]
    assert good.rounds[1].accepted == ("usnea",)
    assert good.rounds[1].metrics == {"accuracy": 0.6}
    assert good.accuracy == 0.6
    assert good.devices[0].windows == 40
    assert good.devices[0].reasons == {"gyroscope": ["stuck"]}
    assert good.confusion == [[1, 0], [0, 1]]
