"""When the demo without labels calls itself a success, and the page that it writes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.demo.core.results import ObservedPrediction, ObserverResults, RoundResult
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.tactfl import devices, report, table
from lichen_lab.demo.plans.tactfl.checks import checks
from lichen_lab.demo.plans.tactfl.comparison import PATIENCE
from lichen_lab.demo.plans.tactfl.prepare import initial_results
from lichen_lab.demo.plans.tactfl.report import PAGE
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, TactflResults, Weighing
from models.contract import WindowSet
from models.data import window_set
from tests.support.lab.pages import check_whole

OPTIONS = Options(Path("unused"), rounds=4)
TASK = devices.task(4)
PARTS = {f"encoder/{name}": [w.name for w in devices.DEVICES if name in w.sensors] for name in devices.BOTH}


def weighed(number: int, broken: float) -> Weighing:
    """A round in which the broken device has that share of an equal one, and the others the rest."""
    weights, similarity = {}, {}
    for part, names in PARTS.items():
        own = broken / len(names)
        weights[part] = {n: own if n == "xanthoria" else (1 - own) / (len(names) - 1) for n in names}
        similarity[part] = {
            a: {b: 1.0 if a == b else 0.1 if "xanthoria" in {a, b} else 0.9 for b in names} for a in names
        }
    return Weighing(number, weights, similarity)


@pytest.fixture
def good() -> TactflResults:
    """A made-up run that went well."""
    y_B = np.arange(14) % 7
    x = {name: np.zeros((14, 3, 128), np.float32) for name in devices.BOTH}
    labelled = WindowSet(x, np.ones((14, 2), np.bool_), np.ones((14, 2), np.float32), y_B)
    results = initial_results(TASK, window_set.check(labelled, TASK))
    accuracies = (0.5, 0.6, 0.65, 0.8)
    results.rounds = [
        RoundResult(n, accuracy, 10 * n, 20 * n, ("usnea",)) for n, accuracy in enumerate(accuracies, 1)
    ]
    results.weighed = [weighed(n, 1.0 - n / 5) for n in (1, 2, 3, 4)]
    results.rivals = [Rival(RANDOM, [0.4, 0.45, 0.5]), Rival(LABELLED, [0.7, 0.72, 0.74])]
    for device in results.devices:
        device.windows, device.counts = 300, {name: [0] * 7 for name in devices.BOTH}
        device.quality = {devices.ACCELEROMETER: 0.9}
    seen = [ObservedPrediction(1.28 * n, "PEN", "PEN" if n % 3 else None, 0.8, {}) for n in range(9)]
    results.observer = ObserverResults("physcia", 7, "python", torch_free=True, how="<own>", predictions=seen)
    results.observer.fault = (3.0, 6.0)
    results.confusion = [[3 if i == j else 1 for j in range(7)] for i in range(7)]
    results.checks = checks(results, OPTIONS)
    return results


def _one_round_less(results: TactflResults) -> None:
    results.rounds.pop()


def _a_label(results: TactflResults) -> None:
    results.devices[2].counts[devices.ACCELEROMETER][3] = 1


def _silent(results: TactflResults) -> None:
    results.devices[2].windows = 0


def _broken_is_believed(results: TactflResults) -> None:
    results.weighed = [weighed(n, 1.1) for n in (1, 2, 3, 4)]


def _another_weighs_less(results: TactflResults) -> None:
    for one in results.weighed:
        for weights in one.weights.values():
            weights["usnea"] = weights["xanthoria"] / 2


def _nobody_weighed(results: TactflResults) -> None:
    results.weighed = []


def _pushed_out(results: TactflResults) -> None:
    results.weighed[1].weights["encoder/gyroscope"]["usnea"] = 0.0


def _random_is_better(results: TactflResults) -> None:
    results.rival(RANDOM).accuracies[:] = [0.9]


def _no_rival(results: TactflResults) -> None:
    results.rivals = []


def _not_judged(results: TactflResults) -> None:
    for one in results.rounds:
        one.accuracy = None


def _torch(results: TactflResults) -> None:
    assert results.observer is not None
    results.observer.torch_free = False


def _guessing(results: TactflResults) -> None:
    assert results.observer is not None
    for one in results.observer.predictions:
        one.label = "ROW"


def _no_observer(results: TactflResults) -> None:
    results.observer = None


def test_all_well(good: TactflResults) -> None:
    assert [check.what for check in good.checks if check.must and not check.ok] == []
    assert good.worked
    assert good.frozen == 0.65
    assert good.relative("xanthoria") == pytest.approx(0.3), "rounds 3 and 4: 0.4 and 0.2"


@pytest.mark.parametrize(
    "spoil",
    [
        _one_round_less,
        _a_label,
        _silent,
        _broken_is_believed,
        _another_weighs_less,
        _nobody_weighed,
        _pushed_out,
        _random_is_better,
        _no_rival,
        _not_judged,
        _torch,
        _guessing,
        _no_observer,
    ],
)
def test_each_thing_that_fails_fails_the_demo(
    good: TactflResults, spoil: Callable[[TactflResults], None]
) -> None:
    spoil(good)
    good.checks = checks(good, OPTIONS)
    assert not good.worked


def test_a_fleet_that_is_no_better_than_the_labelled_windows_alone_is_told(good: TactflResults) -> None:
    good.rival(LABELLED).accuracies[:] = [0.79, 0.85]
    good.checks = checks(good, OPTIONS)
    assert [check.detail for check in good.checks if not check.ok and LABELLED in check.what] == [
        "80.0 % against 79.0 %, 85.0 %: -2.0 points on average"
    ]
    assert good.worked


def test_fine_tuning_that_adds_nothing_is_told_and_does_not_fail_the_demo(good: TactflResults) -> None:
    good.rounds[-2].accuracy = 0.85
    good.checks = checks(good, OPTIONS)
    assert [check.detail for check in good.checks if not check.ok and "fine-tuning" in check.what] == [
        "85.0 % in the round before, 80.0 % after: -5.0 points"
    ]
    assert good.worked


def test_results_are_read_back_as_they_were_written(good: TactflResults, tmp_path: Path) -> None:
    good.save(tmp_path / "report.json")
    again = TactflResults.load(tmp_path / "report.json")
    assert again == good
    assert again.weighed[0].weights.keys() == PARTS.keys()
    assert json.loads((tmp_path / "report.json").read_text())["broken"] == "xanthoria"


@pytest.mark.long
def test_the_page_shows_every_round_and_device_and_escapes_what_it_was_told(
    good: TactflResults, tmp_path: Path
) -> None:
    good.weighed[1].warnings = ("<b>two devices</b> are pushed out",)
    PAGE.write(good, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    check_whole(page)
    assert page.count('<div class="desk"><svg') == 7
    for device in good.devices:
        assert f"<td>{device.name}</td>" in page
    assert "<b>two devices</b>" not in page
    assert "&lt;b&gt;two devices&lt;/b&gt; are pushed out" in page
    assert f"{PATIENCE} times the epochs" in page, "what the rival has got and the fleet has not"
    assert "data:image/png;base64," in page, "the matrices are images"


def test_a_run_of_which_little_is_known_has_a_page_all_the_same() -> None:
    labelled = window_set.empty(TASK)
    results = initial_results(TASK, labelled)
    page = PAGE.html(results)
    assert "<svg" in page
    assert "Similarity of devices" not in page
    assert list(table(results).columns[0].cells) == [device.name for device in results.devices]


def test_a_device_without_the_sensor_has_an_empty_row(good: TactflResults) -> None:
    names = [device.name for device in good.devices]
    found = report.similarity_table(good.weighed[0], "encoder/gyroscope", names)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    assert found[0, 0] == 1.0
    assert found[0, 5] == pytest.approx(0.1)
