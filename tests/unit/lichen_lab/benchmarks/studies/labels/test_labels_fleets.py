"""Fleets of ``lichen bench labels`` from made recordings: who is who, and whose windows are where."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.labels import fleets
from lichen_lab.benchmarks.studies.labels.settings import SPAR, PeopleConditions
from lichen_lab.simulation.data.sets import spar

SIX = PeopleConditions()


def pieces() -> tuple[spar.Series, ...]:
    """Ten people, seven activities of 25.6 s each, as different sums of a sine and noise; no value twice."""
    rng = np.random.default_rng(0)
    t_T = np.arange(1280) / spar.RATE_HZ
    return tuple(
        spar.Series(
            person,
            0,
            label,
            (np.sin(2 * np.pi * (0.5 + 0.3 * label) * t_T)[:, None] + rng.normal(0, 0.3, (1280, 6))).astype(
                np.float32
            ),
        )
        for person in spar.PEOPLE
        for label in range(7)
    )


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = pieces()
    monkeypatch.setattr(fleets, "_series", lambda _name: found)
    for cached in (fleets._early, fleets._late):
        cached.cache_clear()
    yield
    for cached in (fleets._early, fleets._late):
        cached.cache_clear()


@pytest.mark.parametrize("tuning", [False, True])
def test_labels_no_person_is_in_two_roles_and_tuning_sees_no_test_person(*, tuning: bool) -> None:
    seen = set()
    for seed in range(20):
        who = fleets.dealt(SPAR, seed, SIX, tuning=tuning)
        for one, other in combinations((who.start, who.devices, who.test), 2):
            assert not set(one) & set(other)
        assert len(who.devices) == (5 if tuning else 6)
        assert set(who.test) == set(fleets.DATA[SPAR].test_people) or tuning
        if tuning:
            assert not {*who.start, *who.devices, *who.test} & set(fleets.DATA[SPAR].test_people)
        seen.add(who.devices)
    assert len(seen) > 10, "seeds deal other people"


def test_labels_no_value_of_test_or_later_windows_is_among_those_that_train() -> None:
    fleet = fleets.fleet(SPAR, 0, SIX)
    train = {float(x) for pool in (*fleet.pools, fleet.start) for x in pool.x["gyroscope"][:, 0].ravel()}
    for held in (*fleet.later, fleet.test):
        values = held.x["gyroscope"][:, 0].ravel()
        assert len(values) > 500
        assert np.mean([float(x) in train for x in values]) < 0.01
    assert all(set(pool.y_B.tolist()) == set(range(7)) for pool in (*fleet.pools, *fleet.later))


def test_labels_a_faulty_device_has_windows_of_bad_quality_and_no_other_has() -> None:
    sound, hurt = (fleets.fleet(SPAR, 0, PeopleConditions(devices=3, faulty=faulty)) for faulty in (0, 1))
    bad = [[float((pool.quality_BM < 0.5).any(axis=1).mean()) for pool in one.pools] for one in (sound, hurt)]
    assert max(bad[0]) < 0.05
    assert bad[1][0] > 0.2
    assert bad[1][1:] == bad[0][1:]
    assert (sound.faulty, hurt.faulty) == (0, 1)
    np.testing.assert_array_equal(sound.later[0].x["gyroscope"], hurt.later[0].x["gyroscope"])


def test_labels_uneven_days_have_few_windows_of_some_classes() -> None:
    even, uneven = (fleets.fleet(SPAR, 0, PeopleConditions(uneven=one)) for one in (False, True))
    for whole, part in zip(even.pools, uneven.pools, strict=True):
        share_K = np.bincount(part.y_B, minlength=7) / np.bincount(whole.y_B, minlength=7)
        assert (share_K < 0.6).sum() == 3
        assert (share_K == 1).sum() == 4
    np.testing.assert_array_equal(even.test.y_B, uneven.test.y_B)


def test_labels_a_seed_gives_the_same_fleet_again() -> None:
    one, again = (fleets.fleet(SPAR, 5, PeopleConditions(faulty=2), small=True) for _ in range(2))
    assert one.people == again.people
    for mine, other in zip(one.pools, again.pools, strict=True):
        np.testing.assert_array_equal(mine.x["accelerometer"], other.x["accelerometer"])
        np.testing.assert_array_equal(mine.y_B, other.y_B)
