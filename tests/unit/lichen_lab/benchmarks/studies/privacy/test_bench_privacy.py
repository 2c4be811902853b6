"""``lichen bench privacy``: its runs on a made fleet, its titles and its page."""

from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.benchmarks.studies.privacy import STUDY
from lichen_lab.benchmarks.studies.privacy import variants as v
from lichen_lab.benchmarks.studies.privacy.federation import task_of, train
from lichen_lab.benchmarks.studies.privacy.report import PAGE
from lichen_lab.benchmarks.studies.privacy.settings import PrivacySetting
from lichen_lab.benchmarks.study.run_spec import quiet
from models.privacy.accountant import poisson_epsilon
from tests.support.lab.pages import check_whole
from tests.support.studies import privacy_study

SHORT = PrivacySetting(rounds=2, rate=0.5, noise_multiplier=0.5, width=4, features=8, config={"batch": 8})


@pytest.mark.long
def test_privacy_a_run_is_accounted_and_the_same_again() -> None:
    outcome = train(privacy_study.fleet(), SHORT, 3, quiet)
    assert outcome.devices == 8
    assert 0 <= outcome.taken <= 8
    assert outcome.refused == 0
    assert outcome.epsilon is not None
    assert outcome.epsilon_of_seen is not None
    assert outcome.epsilon <= outcome.epsilon_of_seen
    again = train(privacy_study.fleet(), SHORT, 3, quiet)
    assert replace(again, seconds=0.0) == replace(outcome, seconds=0.0)


def test_privacy_a_run_without_noise_has_as_many_devices_and_no_account() -> None:
    plain = replace(SHORT, noise_multiplier=0.0)
    assert task_of(privacy_study.fleet(), plain).privacy is None
    outcome = train(privacy_study.fleet(), plain, 3, quiet)
    assert (outcome.epsilon, outcome.taken, outcome.noise_share) == (None, 4.0, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("title", [title for title in v.NOISE if v.NOISE[title]])
def test_privacy_the_titles_are_true_of_the_noise(title: str) -> None:
    setting = v.line(title, v.NOISE[title]).spec.setting
    found = poisson_epsilon(setting.noise_multiplier, setting.rate, setting.rounds, setting.delta)
    assert found == pytest.approx(float(title.removeprefix("epsilon ")), rel=0.01)


def test_privacy_the_page_shows_every_line(tmp_path: Path) -> None:
    part, seeds = STUDY.parts["central"], (0, 1)
    done = {one.key(): privacy_study.made_up(one) for one in part.specs(seeds)}
    results = part.results(done, seeds)
    PAGE.write([results], results.rows(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    check_whole(text)
    assert all(title in text for title in v.NOISE)
