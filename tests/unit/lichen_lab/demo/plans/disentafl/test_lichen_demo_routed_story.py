"""When the routed demo calls itself a success, and the page that it writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lichen_lab.demo.core.results import ObservedPrediction, RoundResult
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.disentafl import devices, table
from lichen_lab.demo.plans.disentafl.checks import checks
from lichen_lab.demo.plans.disentafl.prepare import initial_results
from lichen_lab.demo.plans.disentafl.report import PAGE
from lichen_lab.demo.plans.disentafl.results import Bundle, DisentaflResults, ModelMove, RoutedObserver
from models.contract import Profile
from models.methods.disentafl.routing import blob_names
from tests.support.lab.pages import check_whole

OPTIONS = Options(Path("unused"), rounds=3)
TASK = devices.task(3)
WHOLE = blob_names.route(TASK, Profile(TASK.input_names, TASK.target_names))


@pytest.fixture
def good() -> DisentaflResults:
    """A made-up run that went well."""
    results = initial_results(TASK)
    results.blobs = dict.fromkeys(WHOLE, 1000)
    results.supernet_up, results.plugged_after = 9000, 1
    metrics = {"accuracy": 0.8, "arm/accuracy": 0.9, "speed/r2": 0.6}
    results.rounds = [RoundResult(n, 0.8, 10 * n, 20 * n, ("usnea",), metrics=metrics) for n in (1, 2, 3)]
    for device in results.devices:
        device.starts, device.windows, device.predictions, device.live = 1, 300, 20, 0.9
        for number in (1, 2, 3) if not device.observes else ():
            sensors = device.sensors if number == 1 else (*device.sensors, *device.later)
            route = blob_names.route(TASK, Profile(sensors, device.targets), (1,))
            device.moves.append(
                ModelMove(number, sensors, device.targets, 1, route, route, route, 9000, 3000)
            )
        reads = device.sensors if device.observes else device.moves[-1].modalities
        device.bundle = Bundle(3, f"{device.name:0<64}", 200_000, reads, device.targets)
        device.scores = dict.fromkeys(device.targets, 0.8)
        if not device.observes:
            device.alone = dict.fromkeys(device.targets, 0.5)
    seen = [ObservedPrediction(1.28 * n, "PEN", "PEN" if n % 3 else None, 0.8, {}) for n in range(9)]
    results.observer = RoutedObserver("physcia", 7, "python", torch_free=True, how="<own>", predictions=seen)
    results.observer.right, results.observer.explained = {"label": 0.7, "arm": 0.9}, 0.6
    results.observer.values = [(1.28 * n, 2.0, None if n == 4 else 2.5) for n in range(9)]
    results.confusion = [[3 if i == j else 1 for j in range(7)] for i in range(7)]
    results.checks = checks(results, OPTIONS)
    return results


def named(results: DisentaflResults, name: str):
    return next(device for device in results.devices if device.name == name)


def _stray(results: DisentaflResults) -> None:
    named(results, "cladonia").moves[1].fetched += ("base/gyroscope",)


def _unseen(results: DisentaflResults) -> None:
    for move in named(results, "cladonia").moves:
        move.fetched = ()


def _all_of_it(results: DisentaflResults) -> None:
    for move in named(results, "lobaria").moves:
        move.down = results.supernet


def _unplugged(results: DisentaflResults) -> None:
    device = named(results, "xanthoria")
    assert device.bundle is not None
    device.bundle.modalities = device.sensors
    for move in device.moves:
        move.modalities = device.sensors


def _plugged_from_the_start(results: DisentaflResults) -> None:
    del named(results, "xanthoria").moves[0]


def _restarted(results: DisentaflResults) -> None:
    named(results, "xanthoria").starts = 2


def _no_bundle(results: DisentaflResults) -> None:
    named(results, "evernia").bundle = None


def _anothers_bundle(results: DisentaflResults) -> None:
    named(results, "evernia").bundle = named(results, "usnea").bundle


def _silent(results: DisentaflResults) -> None:
    named(results, "lobaria").predictions = 0


def _guessing(results: DisentaflResults) -> None:
    named(results, "usnea").scores["arm"] = 0.5


def _not_judged(results: DisentaflResults) -> None:
    del named(results, "usnea").scores["arm"]


def _worse_than_alone(results: DisentaflResults) -> None:
    for device in results.trained:
        device.alone = dict.fromkeys(device.targets, 0.9)


def _torch(results: DisentaflResults) -> None:
    assert results.observer is not None
    results.observer.torch_free = False


def _no_observer(results: DisentaflResults) -> None:
    results.observer = None


def _one_round_less(results: DisentaflResults) -> None:
    results.rounds.pop()


def test_all_well(good: DisentaflResults) -> None:
    assert [check.what for check in good.checks if check.must and not check.ok] == []
    assert good.worked


@pytest.mark.parametrize(
    "spoil",
    [
        _stray,
        _unseen,
        _all_of_it,
        _unplugged,
        _plugged_from_the_start,
        _restarted,
        _no_bundle,
        _anothers_bundle,
        _silent,
        _guessing,
        _not_judged,
        _worse_than_alone,
        _torch,
        _no_observer,
        _one_round_less,
    ],
)
def test_each_thing_that_fails_fails_the_demo(
    good: DisentaflResults, spoil: Callable[[DisentaflResults], None]
) -> None:
    spoil(good)
    found = [check for check in checks(good, OPTIONS) if check.must and not check.ok]
    assert len(found) == 1, "one fault, one cross"
    assert found[0].detail


def test_a_device_that_loses_by_sharing_is_told_and_does_not_fail_the_demo(good: DisentaflResults) -> None:
    named(good, "parmelia").alone = {"label": 0.9, "speed": 0.8}
    good.checks = checks(good, OPTIONS)
    lost = [check for check in good.checks if "parmelia" in check.what]
    assert [(check.ok, check.must) for check in lost] == [(False, False)]
    assert "80 against 90" in lost[0].detail
    assert good.worked


def test_a_killed_device_may_be_started_twice(good: DisentaflResults) -> None:
    good.chaos, good.struck, good.struck_round = True, "xanthoria", 1
    good.returned, good.reconnected = ("coordinator", "xanthoria"), True
    named(good, "xanthoria").starts = 2
    good.checks = checks(good, OPTIONS)
    assert good.worked


@pytest.mark.long
def test_the_page_shows_the_results_and_fetches_nothing(good: DisentaflResults) -> None:
    page = PAGE.html(good)
    assert page.count('<div class="desk"><svg') == 8
    check_whole(page)
    assert "<own>" not in page
    assert "r2 0.60" in page
    assert "80 %" in page
    smallest = min(sum(m.down for m in d.moves) / 3 for d in good.trained)
    assert f"{100 * smallest / good.supernet:.0f} %" in page


def test_results_of_which_little_is_known_still_render(good: DisentaflResults) -> None:
    good.observer, good.confusion, good.blobs, good.plugged_after = None, [], {}, None
    for device in good.devices:
        device.moves, device.bundle, device.scores, device.alone = [], None, {}, {}
    assert PAGE.html(good).count('<div class="desk"><svg') == 2
    assert table(good).row_count == len(good.devices)


def test_results_survive_their_file(good: DisentaflResults, tmp_path: Path) -> None:
    good.save(tmp_path / "report.json")
    assert DisentaflResults.load(tmp_path / "report.json") == good
