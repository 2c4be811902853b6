"""The report needs nothing but itself, and shows what the results say."""

from pathlib import Path

import pytest

from lichen_lab.demo.core.results import (
    Check,
    DeviceResults,
    ObservedPrediction,
    ObserverResults,
    RoundResult,
)
from lichen_lab.demo.figures import describe_confusion
from lichen_lab.demo.page import size
from lichen_lab.demo.plans.qqr.report import PAGE
from lichen_lab.demo.plans.qqr.results import QqrResults, Sizes
from lichen_lab.demo.plans.qqr.simulated_seeds import ALONE, FEDERATED, SeedLine
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from tests.support.lab.browser import at_widths, needs_chromium
from tests.support.lab.pages import check_whole


def made_up() -> QqrResults:
    """A made-up run, small."""
    told = QqrResults(
        labels=spar.LABELS, modalities=("accelerometer", "gyroscope"), unseen=(8, 9, 10), version="1"
    )
    told.rounds = [RoundResult(i, 0.3 + i / 10, 1000 * i, 2000 * i, ("usnea",)) for i in range(1, 5)]
    for device in spar_fleet.DEVICES:
        counts = {m: list(range(7)) for m in told.modalities}
        one = DeviceResults(device.name, device.people, device.trouble, 21, counts, alone=0.5)
        one.quality = {"accelerometer": 0.9}
        one.missing = {"gyroscope": 0.4}
        told.devices.append(one)
    told.confusion = [[3 if i == j else 0 for j in range(7)] for i in range(7)]
    seen = [
        ObservedPrediction(1.28 * i, "PEN", "PEN" if i % 3 else None, 0.8, {"gyroscope": True})
        for i in range(9)
    ]
    told.observer = ObserverResults(
        "physcia", 7, "python", torch_free=True, how="<own & clean>", predictions=seen
    )
    told.observer.fault = (3.0, 6.0)
    told.study = [SeedLine(s, v, a, 1.0) for s in (1, 2) for v, a in ((FEDERATED, 0.8), (ALONE, 0.5))]
    told.sizes = Sizes(1094, 26, 100, 95)
    told.checks = [Check("a", ok=True, detail="fine"), Check("b", ok=False, detail="no", must=False)]
    return told


@pytest.fixture
def results() -> QqrResults:
    return made_up()


@pytest.fixture(scope="module")
def page() -> str:
    """Of the results as they are: to draw its figures takes seconds."""
    return PAGE.html(made_up())


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    check_whole(page)
    assert page.count('<div class="desk"><svg') == 7


@pytest.mark.long
@needs_chromium
def test_no_figure_is_cut_at_the_width_of_a_phone_a_tablet_and_a_desk(
    results: QqrResults, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(PAGE.html(results))
    shown = """[...document.querySelectorAll("figure .scroll")].map((box) => [
        box.scrollWidth - box.clientWidth,
        [...box.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect().width).filter((w) => w > 0),
    ])"""
    for width, figures in at_widths(page, (360, 1000, 1400), shown, tmp_path).items():
        assert len(figures) == 7
        for cut_px, widths in figures:
            assert cut_px <= 0, f"a figure is cut by {cut_px} px at {width} px"
            assert len(widths) == 1, "a page shows a figure for a desk or for a phone"
            assert widths[0] >= 250


def test_the_headlines_are_those_of_the_results(page: str) -> None:
    assert "70 %" in page  # the last round
    assert "+30.0" in page  # the margin over a device alone
    assert "1.1 kB" in page
    assert "<own" not in page


def test_results_without_study_observer_and_confusion_still_render(results: QqrResults) -> None:
    results.study, results.observer, results.confusion, results.sizes = [], None, [], None
    for device in results.devices:
        device.alone = None
    assert PAGE.html(results).count('<div class="desk"><svg') == 4


def test_results_survive_their_file(results: QqrResults, tmp_path: Path) -> None:
    results.save(tmp_path / "report.json")
    assert QqrResults.load(tmp_path / "report.json") == results


def test_what_must_hold_decides(results: QqrResults) -> None:
    assert results.worked
    results.checks.append(Check("c", ok=False, detail=""))
    assert not results.worked
    results.checks = []
    assert not results.worked, "nothing was checked"


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (999, 1094, 2_500_000)] == ["999 B", "1.1 kB", "2.5 MB"]


def test_the_largest_confusion_is_named(results: QqrResults) -> None:
    assert describe_confusion(results) == "No window is taken for another exercise."
    results.confusion[3][4], results.confusion[0][1] = 9, 2
    words = "internal rotation is taken for external rotation in 75 % of its windows (9 of 12)"
    assert words in describe_confusion(results)


def test_the_table_says_which_case_it_shows_and_greys_what_is_within_the_spread(results: QqrResults) -> None:
    results.study += [
        SeedLine(s, v, a, 1.0) for v in ("zero input", "zero feature") for s, a in ((1, 0.78), (2, 0.83))
    ]
    page = PAGE.html(results)
    assert "one of them is missing" in page
    assert page.count('class="n soft"') == 2


def test_beside_the_accuracy_stands_what_it_is_of(results: QqrResults) -> None:
    results.confusion[0][1] = 3
    assert results.judged == 24
    # of the first class 3 of 6 are found, of the second 3 are and 3 more are called so
    assert results.macro_f1 == pytest.approx((2 * (6 / 9) + 5) / 7)
    words = PAGE.html(results)
    assert describe_confusion(results) in words
    assert "model on 24 windows of" in words
    assert "macro F1 over 7 classes 90 %" in words
