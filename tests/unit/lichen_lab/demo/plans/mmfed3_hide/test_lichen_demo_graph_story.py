"""When the demo on knowledge graphs calls itself a success, and the page that it writes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.demo.core.results import RoundResult
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.mmfed3_hide import devices, table
from lichen_lab.demo.plans.mmfed3_hide.checks import checks, guessing
from lichen_lab.demo.plans.mmfed3_hide.report import PAGE
from lichen_lab.demo.plans.mmfed3_hide.results import (
    Gateway,
    GatewayAnswer,
    GraphResults,
    Scores,
    SearchOutcome,
    Turn,
)
from tests.support.lab.pages import check_whole

ROUNDS = 6
OPTIONS = Options(Path("unused"), rounds=ROUNDS)
GROWN, JOINED = 2, 3


def gateway(site: devices.DemoSite) -> Gateway:
    """One that went well."""
    later = 50 * bool(site.later)
    first = JOINED + 2 if site.late else 1
    return Gateway(
        name=site.name,
        about=site.about,
        relations=site.relations,
        entities=100,
        entities_first=90,
        texts=50,
        triples=500,
        later=later,
        late=site.late,
        turns=[
            Turn(n, 500 + later * (n > GROWN + 1), 0.1 * n, up=100, down=300, float32=1000)
            for n in range(first, ROUNDS + 1)
        ],
        alone={n: 0.05 * n for n in range(first, ROUNDS + 1)},
        scores=Scores(0.7, 0.5, 0.9, 40),
        scores_alone=Scores(0.6, 0.4, 0.8, 40),
        answers=[
            GatewayAnswer("a_<b>head", "treats", ("fever",), None if later else ("cold",), ("cold", "fever")),
            GatewayAnswer("aspirin", "treats", ("ache",), ("cold",), ("ache", "fever")),
        ],
        model=ROUNDS,
        starts=1,
    )


@pytest.fixture
def good() -> GraphResults:
    """A made-up run that went well."""
    results = GraphResults(entities=135, version="1", grown_after=GROWN, joined_after=JOINED, bundle=4000)
    results.gateways = [gateway(site) for site in devices.SITES]
    results.rounds = [RoundResult(n, 0.1 * n, 10 * n, 20 * n, ("ward",)) for n in range(1, ROUNDS + 1)]
    results.searched = SearchOutcome(10_000, 300, {"names": 150, "relation keys": 46}, (), 135)
    results.torch_free, results.how = True, "an environment"
    results.events = [(1.0, "began")]
    results.checks = checks(results, OPTIONS)
    return results


def _one_round_less(results: GraphResults) -> None:
    results.rounds.pop()


def _a_name_was_seen(results: GraphResults) -> None:
    assert results.searched is not None
    results.searched = replace(results.searched, found=("names: antibiotic",))


def _blind_search(results: GraphResults) -> None:
    assert results.searched is not None
    results.searched = replace(results.searched, keys=0)


def _not_searched(results: GraphResults) -> None:
    results.searched = None


def _missed(results: GraphResults) -> None:
    results.missed = 3


def _fat_updates(results: GraphResults) -> None:
    for turn in results.gateways[0].turns:
        turn.up = 250


def _never_grew(results: GraphResults) -> None:
    for turn in results.gateway("ward").turns:
        turn.triples = 500


def _grew_late(results: GraphResults) -> None:
    for turn in results.gateway("ward").turns[:-1]:
        turn.triples = 500


def _restarted(results: GraphResults) -> None:
    results.gateway("ward").starts = 2


def _never_joined(results: GraphResults) -> None:
    results.gateway("pharmacy").turns = []


def _joined_and_left(results: GraphResults) -> None:
    results.gateway("pharmacy").turns.pop()


def _silent(results: GraphResults) -> None:
    results.gateways[1].answers[0].after = None


def _old_model(results: GraphResults) -> None:
    results.gateways[1].model = 3


def _guesses(results: GraphResults) -> None:
    for one in results.gateways:
        for answer in one.answers:
            answer.after = ("nonsense",)


def _knew_before(results: GraphResults) -> None:
    results.gateway("ward").answers[0].before = ("cold",)


def _torch(results: GraphResults) -> None:
    results.torch_free = False


def _not_asked(results: GraphResults) -> None:
    results.torch_free = None


def _below_alone(results: GraphResults) -> None:
    for one in results.gateways:
        one.scores_alone = Scores(0.8, 0.6, 0.9, 40)


def _not_judged(results: GraphResults) -> None:
    results.gateways[2].scores = None


def test_all_well(good: GraphResults) -> None:
    assert [check.what for check in good.checks if not check.ok] == []
    assert good.worked
    assert good.mrr == pytest.approx(0.7)
    assert good.share(lambda turn: turn.down) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "spoil",
    [
        _one_round_less, _a_name_was_seen, _blind_search, _not_searched, _missed, _fat_updates, _never_grew,
        _grew_late, _restarted, _never_joined, _joined_and_left, _silent, _old_model, _guesses, _knew_before,
        _torch, _not_asked, _below_alone, _not_judged,
    ],
)  # fmt: skip
def test_each_thing_that_fails_fails_the_demo(
    good: GraphResults, spoil: Callable[[GraphResults], None]
) -> None:
    spoil(good)
    good.checks = checks(good, OPTIONS)
    assert not good.worked


def test_a_gateway_that_loses_by_sharing_is_told_and_does_not_fail_the_demo(good: GraphResults) -> None:
    good.gateways[0].scores_alone = Scores(0.75, 0.5, 0.9, 40)
    good.checks = checks(good, OPTIONS)
    assert [check.what for check in good.checks if not check.ok] == ["anatomy gains by sharing"]
    assert good.worked


def test_guessing_is_the_chance_of_five_different_entities(good: GraphResults) -> None:
    assert guessing(good.gateways[0], GatewayAnswer("h", "r", ("t",))) == pytest.approx(5 / 100)
    assert guessing(good.gateways[0], GatewayAnswer("h", "r", tuple(map(str, range(100))))) == 1


def test_results_are_read_back_as_they_were_written(good: GraphResults, tmp_path: Path) -> None:
    good.save(tmp_path / "report.json")
    assert GraphResults.load(tmp_path / "report.json") == good


def test_the_page_shows_every_gateway_and_answer_and_escapes_what_it_was_told(
    good: GraphResults, tmp_path: Path
) -> None:
    PAGE.write(good, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    check_whole(page)
    assert page.count('<div class="desk"><svg') == 3
    for one in good.gateways:
        assert f"<td>{one.name}</td>" in page
        assert f"What {one.name} answers" in page
    assert "a_<b>head" not in page
    assert "a &lt;b&gt;head" in page
    assert page.count('<b class="good">fever</b>') == len(good.gateways)
    assert page.count("no answer yet") == 1


@pytest.mark.long
def test_a_run_of_which_little_is_known_has_a_page_all_the_same(good: GraphResults) -> None:
    for one in good.gateways:
        one.turns, one.alone, one.scores, one.scores_alone = [], {}, None, None
    good.searched = good.grown_after = good.joined_after = None
    good.gateways[0].answers[0].after = ()
    assert "<svg" in PAGE.html(good)
    assert "nothing that it does not know" in PAGE.html(good)
    assert list(table(good).columns[0].cells) == [one.name for one in good.gateways]
