"""``lichen bench labels``: its rules, runs on a made fleet, rows and page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.labels import STUDY, strategies
from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.federation import LabelledPool, answers
from lichen_lab.benchmarks.studies.labels.linear import fitted, predicted
from lichen_lab.benchmarks.studies.labels.report import PAGE
from lichen_lab.benchmarks.studies.labels.runs import RUNS
from lichen_lab.benchmarks.studies.labels.settings import OWN, UNMET, LabelOutcome, LabelRun, LabelSetting
from lichen_lab.benchmarks.studies.labels.strategies import STRATEGIES, LabelChoice
from lichen_lab.benchmarks.study.part import above
from lichen_lab.benchmarks.study.run_spec import quiet
from protocol.errors import Misconfigured
from tests.support.lab import labels_study
from tests.support.lab.labels_study import TINY
from tests.support.lab.pages import check_whole

RULES = list(STRATEGIES)


def choice(count: int, *, model: bool = True, labelled: tuple[int, ...] = (), seed: int = 0) -> LabelChoice:
    """A pool of 40 windows: half of class 0, of which the model is sure, half between two classes."""
    rng = np.random.default_rng(1)
    doubt_P = np.where(np.arange(40) < 20, 0.02, rng.uniform(0.3, 0.5, 40))
    p_PK = np.stack([1 - doubt_P, doubt_P, np.zeros(40)], axis=1).astype(np.float32)
    taken = np.array(labelled, np.int64)
    return LabelChoice(
        np.setdiff1d(np.arange(40), taken),
        taken,
        p_PK if model else None,
        rng.normal(size=(40, 6)),
        rng.normal(size=(40, 5)) if model else None,
        count,
        np.random.default_rng(seed),
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("labelled", [(), (3, 30)])
def test_labels_every_rule_asks_for_as_many_other_windows(
    rule: str, *, model: bool, labelled: tuple[int, ...]
) -> None:
    given = choice(7, model=model, labelled=labelled)
    found = STRATEGIES[rule](given)
    assert len(set(found.tolist())) == 7
    assert set(found.tolist()) <= set(given.candidates_B.tolist())
    np.testing.assert_array_equal(found, STRATEGIES[rule](choice(7, model=model, labelled=labelled)))
    assert len(STRATEGIES[rule](choice(99, model=model, labelled=labelled))) == 40 - len(labelled)


def test_labels_margin_asks_for_what_the_model_hesitates_on_and_badge_mostly() -> None:
    given = choice(10)
    order = np.argsort(-given.p_PK[:, 1])  # type: ignore[index]  # a model predicts
    assert set(strategies.margin(given).tolist()) == set(order[:10].tolist())
    assert (strategies.badge(given) >= 20).mean() > 0.5
    assert 0.2 < np.mean([(strategies.random(choice(10, seed=s)) >= 20).mean() for s in range(20)]) < 0.8


def test_labels_the_core_set_takes_the_furthest() -> None:
    given = replace(choice(3), inner_PD=np.arange(40.0)[:, None])
    assert strategies.coreset(given).tolist() == [19, 39, 0], "the middle, then both ends"


@pytest.mark.parametrize("rule", RUNS)
def test_labels_a_run_gives_the_budget_to_every_rule_and_the_same_again(rule: str) -> None:
    outcome = RUNS[rule](labels_study.fleet(), TINY, 3, quiet)
    assert outcome.given == TINY.labels
    assert outcome.refused == 0
    assert set(outcome.accuracy) == set(outcome.macro_f1) == set(outcome.start) == {UNMET, OWN}
    again = RUNS[rule](labels_study.fleet(), TINY, 3, quiet)
    assert replace(again, seconds=0.0) == replace(outcome, seconds=0.0)


def test_labels_runs_of_a_seed_have_one_start_model_and_other_seeds_another() -> None:
    made = {
        (rule, seed): RUNS[rule](labels_study.fleet(), TINY, seed, quiet).start
        for rule, seed in (("random", 0), ("asked", 0), ("random", 1))
    }
    assert made["random", 0] == made["asked", 0] != made["random", 1]
    cold = RUNS["asked"](labels_study.fleet(), replace(TINY, start_rounds=0), 0, quiet)
    assert cold.start == {}
    assert cold.given == TINY.labels


def test_labels_the_linear_classifier_finds_classes_that_lines_divide() -> None:
    rng = np.random.default_rng(0)
    y_B = np.repeat(np.arange(3), 20)
    z_BD = rng.normal(0, 0.1, (60, 4)) + np.eye(4)[y_B]
    p_BK = predicted(fitted(z_BD, y_B, 3), z_BD)
    assert (p_BK.argmax(axis=1) == y_B).all()
    np.testing.assert_allclose(p_BK.sum(axis=1), 1, rtol=1e-5)
    assert p_BK.max(axis=1).min() > 0.6


def test_labels_a_linear_run_needs_a_start_model() -> None:
    with pytest.raises(Misconfigured, match="start_rounds is 0"):
        RUNS["linear-asked"](labels_study.fleet(), replace(TINY, start_rounds=0), 0, quiet)


def test_labels_devices_train_on_labelled_windows_with_the_answer_alone() -> None:
    windows = labels_study.windows(1, 10)
    said_P = answers(windows, 7, 0.1, seed=0, place=0)
    assert 0 < (said_P != windows.y_B).mean() < 0.3
    np.testing.assert_array_equal(said_P, answers(windows, 7, 0.1, seed=0, place=0))
    np.testing.assert_array_equal(answers(windows, 7, 0.0, seed=0, place=0), windows.y_B)
    pool = LabelledPool(windows, said_P, [5, 2])
    held = pool.at(1)
    assert held.y_B.tolist() == said_P[[2, 5]].tolist()
    assert not {2, 5} & set(pool.candidates(any_quality=False).tolist())


def test_labels_a_window_of_bad_quality_is_a_candidate_only_if_that_is_asked() -> None:
    windows = labels_study.windows(1, 10)
    windows.quality_BM[::2, 1] = 0.3
    pool = LabelledPool(windows, windows.y_B)
    assert pool.candidates(any_quality=False).tolist() == list(range(1, 70, 2))
    assert len(pool.candidates(any_quality=True)) == 70
    hurt = replace(labels_study.fleet(1), pools=(windows,), later=(windows,), faulty=1)
    assert RUNS["asked"](hurt, TINY, 0, quiet).bad_share == 0
    assert RUNS["random"](hurt, replace(TINY, any_quality=True), 0, quiet).bad_share > 0


def test_labels_differences_are_between_asked_and_twice_as_many_random_ones() -> None:
    part = STUDY.parts["curve"]

    def made(one: LabelRun) -> LabelOutcome:
        level = 70.0 + one.seed + (one.setting.labels / 10 if one.method == v.ASKED else 0)
        return LabelOutcome({UNMET: level, OWN: level + 5}, {UNMET: 1.0, OWN: 2.0}, {}, 30.0)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs((0, 1))}, (0, 1)))
    found = {(row.dataset, row.method, row.metric): row for row in rows}
    ahead = found["SPAR", "30 asked", above("60 random")]
    assert ahead.mean == pytest.approx(3.0)
    assert (ahead.sd, ahead.n) == (0.0, 2)
    own = found["UCI-HAR", "15 asked", v.OWN_WORDS + above("30 random")]
    assert own.mean == pytest.approx(1.5)
    assert all(goal.met(row) for goal in part.goals for row in rows if goal.concerns(row))


def test_labels_lines_of_a_part_differ_in_the_labels_alone() -> None:
    """The same training, rounds, sessions and people, in every line under the same conditions."""
    for part in STUDY.parts.values():
        for under in {line.under for line in part.variants}:
            specs = [line.spec for line in part.variants if line.under == under]
            neutral = LabelSetting()
            rest = {
                repr(
                    (
                        replace(one.setting, labels=neutral.labels, any_quality=False),
                        one.conditions,
                        one.tuning,
                    )
                )
                for one in specs
            }
            assert len(rest) == 1, (part.name, under)


def test_labels_the_page_is_whole_and_has_a_curve_for_each_data_set(tmp_path: Path) -> None:
    results = [
        part.results({one.key(): labels_study.made_up(one) for one in part.specs((0, 1))}, (0, 1))
        for part in (STUDY.parts["curve"], STUDY.parts["linear"], STUDY.parts["faulty"])
    ]
    rows = [row for one in results for row in one.part.rows(one)]
    PAGE.write(results, rows, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    check_whole(page)
    for words in (
        "SPAR",
        "UCI-HAR",
        "labels on a device (logarithmic)",
        "start model",
        v.RULES["badge"],
        v.ON_BAD,
    ):
        assert words in page
