"""When the demo on knowledge graphs calls itself a success, and the page that it writes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.demo.core.results import RoundStory
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.mmfed3_hide import devices
from lichen_lab.demo.plans.mmfed3_hide.checks import checks, guessing
from lichen_lab.demo.plans.mmfed3_hide.report import PAGE
from lichen_lab.demo.plans.mmfed3_hide.results import (
    Gateway,
    GraphStory,
    ObserverAnswer,
    Scores,
    Searched,
    Turn,
)
from lichen_lab.demo.plans.mmfed3_hide.summary import table
from tests.support.pages import check_whole

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
            ObserverAnswer(
                "a_<b>head", "treats", ("fever",), None if later else ("cold",), ("cold", "fever")
            ),
            ObserverAnswer("aspirin", "treats", ("ache",), ("cold",), ("ache", "fever")),
        ],
        model=ROUNDS,
        starts=1,
    )


@pytest.fixture
def good() -> GraphStory:
    """A made-up run that went well."""
    story = GraphStory(entities=135, version="1", grown_after=GROWN, joined_after=JOINED, bundle=4000)
    story.gateways = [gateway(site) for site in devices.SITES]
    story.rounds = [RoundStory(n, 0.1 * n, 10 * n, 20 * n, ("ward",)) for n in range(1, ROUNDS + 1)]
    story.searched = Searched(10_000, 300, {"names": 150, "relation keys": 46}, (), 135)
    story.torch_free, story.how = True, "an environment"
    story.events = [(1.0, "began")]
    story.checks = checks(story, OPTIONS)
    return story


def _one_round_less(story: GraphStory) -> None:
    story.rounds.pop()


def _a_name_was_seen(story: GraphStory) -> None:
    assert story.searched is not None
    story.searched = replace(story.searched, found=("names: antibiotic",))


def _blind_search(story: GraphStory) -> None:
    assert story.searched is not None
    story.searched = replace(story.searched, keys=0)


def _not_searched(story: GraphStory) -> None:
    story.searched = None


def _missed(story: GraphStory) -> None:
    story.missed = 3


def _fat_updates(story: GraphStory) -> None:
    for turn in story.gateways[0].turns:
        turn.up = 250


def _never_grew(story: GraphStory) -> None:
    for turn in story.gateway("ward").turns:
        turn.triples = 500


def _grew_late(story: GraphStory) -> None:
    for turn in story.gateway("ward").turns[:-1]:
        turn.triples = 500


def _restarted(story: GraphStory) -> None:
    story.gateway("ward").starts = 2


def _never_joined(story: GraphStory) -> None:
    story.gateway("pharmacy").turns = []


def _joined_and_left(story: GraphStory) -> None:
    story.gateway("pharmacy").turns.pop()


def _silent(story: GraphStory) -> None:
    story.gateways[1].answers[0].after = None


def _old_model(story: GraphStory) -> None:
    story.gateways[1].model = 3


def _guesses(story: GraphStory) -> None:
    for one in story.gateways:
        for answer in one.answers:
            answer.after = ("nonsense",)


def _knew_before(story: GraphStory) -> None:
    story.gateway("ward").answers[0].before = ("cold",)


def _torch(story: GraphStory) -> None:
    story.torch_free = False


def _not_asked(story: GraphStory) -> None:
    story.torch_free = None


def _below_alone(story: GraphStory) -> None:
    for one in story.gateways:
        one.scores_alone = Scores(0.8, 0.6, 0.9, 40)


def _not_judged(story: GraphStory) -> None:
    story.gateways[2].scores = None


def test_all_well(good: GraphStory) -> None:
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
def test_each_thing_that_fails_fails_the_demo(good: GraphStory, spoil: Callable[[GraphStory], None]) -> None:
    spoil(good)
    good.checks = checks(good, OPTIONS)
    assert not good.worked


def test_a_gateway_that_loses_by_sharing_is_told_and_does_not_fail_the_demo(good: GraphStory) -> None:
    good.gateways[0].scores_alone = Scores(0.75, 0.5, 0.9, 40)
    good.checks = checks(good, OPTIONS)
    assert [check.what for check in good.checks if not check.ok] == ["anatomy gains by sharing"]
    assert good.worked


def test_guessing_is_the_chance_of_five_different_entities(good: GraphStory) -> None:
    assert guessing(good.gateways[0], ObserverAnswer("h", "r", ("t",))) == pytest.approx(5 / 100)
    assert guessing(good.gateways[0], ObserverAnswer("h", "r", tuple(map(str, range(100))))) == 1


def test_the_story_is_read_back_as_it_was_written(good: GraphStory, tmp_path: Path) -> None:
    good.save(tmp_path / "report.json")
    assert GraphStory.load(tmp_path / "report.json") == good


def test_the_page_shows_every_gateway_and_answer_and_escapes_what_it_was_told(
    good: GraphStory, tmp_path: Path
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


def test_a_run_of_which_little_is_known_has_a_page_all_the_same(good: GraphStory) -> None:
    for one in good.gateways:
        one.turns, one.alone, one.scores, one.scores_alone = [], {}, None, None
    good.searched = good.grown_after = good.joined_after = None
    good.gateways[0].answers[0].after = ()
    assert "<svg" in PAGE.html(good)
    assert "nothing that it does not know" in PAGE.html(good)
    assert list(table(good).columns[0].cells) == [one.name for one in good.gateways]
