"""The account of central privacy: closed forms, dp-accounting, bounds, words."""

import math
import sys

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution

from models.privacy.account import epsilon_of, rho_of
from models.privacy.accountant import (
    epsilon_after,
    epsilon_of_seen,
    gaussian_epsilon,
    poisson_epsilon,
    releases_within,
)
from models.privacy.central_account import CentralAccount
from protocol.errors import Misconfigured
from protocol.tasks.folding import Privacy

GRID = [(1.0, 12), (2.0, 1), (5.0, 300), (0.8, 3), (30.0, 2000)]


def by_pld(noise: float, releases: int, delta: float, rate: float = 1.0) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-4 if rate < 1.0 else 1e-3)
    event = dp_accounting.GaussianDpEvent(noise)
    sampled = event if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, releases))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(("noise", "releases"), GRID)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_the_closed_form_is_within_a_percent_of_dp_accounting(
    noise: float, releases: int, delta: float
) -> None:
    found = gaussian_epsilon(noise, releases, delta)
    assert found == pytest.approx(by_pld(noise, releases, delta), rel=0.01)
    assert found <= epsilon_of(releases * rho_of(noise), delta)  # zCDP's bound holds above


@pytest.mark.parametrize(("noise", "rate", "releases"), [(2.0, 0.1, 50), (5.0, 0.01, 10_000)])
def test_sampling_is_within_a_percent_of_dp_accounting(noise: float, rate: float, releases: int) -> None:
    found = poisson_epsilon(noise, rate, releases, 1e-5)
    assert found == pytest.approx(by_pld(noise, releases, 1e-5, rate), rel=0.01)
    assert found < gaussian_epsilon(noise, releases, 1e-5)


def test_a_single_gaussian_is_the_known_value() -> None:
    # the classical calibration sqrt(2 ln(1.25 / delta)) of epsilon 1 is an upper bound
    noise = math.sqrt(2 * math.log(1.25 / 1e-5))
    assert 0.7 < gaussian_epsilon(noise, 1, 1e-5) < 1.0
    assert gaussian_epsilon(noise, 0, 1e-5) == 0.0
    assert gaussian_epsilon(1000.0, 1, 0.01) == 0.0


def test_the_discrete_gaussian_is_accounted_as_the_continuous_one() -> None:
    discrete = privacy_loss_distribution.from_discrete_gaussian_mechanism(2000, sensitivity=1000)
    assert gaussian_epsilon(2.0, 1, 1e-5) == pytest.approx(discrete.get_epsilon_for_delta(1e-5), rel=1e-3)


def test_without_sampling_a_replaced_device_counts_twice() -> None:
    fixed = Privacy(clip=1.0, noise_multiplier=4.0)
    assert fixed.sensitivity == 2
    assert epsilon_after(fixed, 10) == gaussian_epsilon(2.0, 10, 1e-5)
    assert fixed.divisor(7) == 7.0
    poisson = Privacy(clip=1.0, noise_multiplier=4.0, sampling="poisson", rate=0.1, devices=80)
    assert poisson.sensitivity == 1
    assert poisson.divisor(7) == poisson.divisor(0) == 8.0
    assert epsilon_of_seen(poisson, 10) == gaussian_epsilon(4.0, 10, 1e-5) > epsilon_after(poisson, 10)


@pytest.mark.parametrize("sampled", [False, True])
def test_the_limit_is_the_last_version_within_it(*, sampled: bool) -> None:
    noise = 4.0 if sampled else 20.0
    more = {"sampling": "poisson", "rate": 0.2, "devices": 50} if sampled else {}
    privacy = Privacy.model_validate({"clip": 1.0, "noise_multiplier": noise, "max_epsilon": 1.5, **more})
    most = releases_within(privacy, 60)
    assert 0 < most < 60
    assert epsilon_after(privacy, most) <= 1.5 < epsilon_after(privacy, most + 1)
    assert releases_within(privacy, most - 1) == most - 1
    assert releases_within(privacy.model_copy(update={"max_epsilon": None}), 400) == 400
    assert releases_within(privacy.model_copy(update={"max_epsilon": 1e-3}), 400) == 0


def test_hopeless_noise_is_answered_at_once_by_a_bound() -> None:
    assert gaussian_epsilon(0.01, 100_000, 1e-5) == epsilon_of(100_000 * rho_of(0.01), 1e-5)
    for noise, releases in ((1e-4, 1), (0.09, 1), (0.3, 100_000)):  # else: hundreds of GB
        assert poisson_epsilon(noise, 0.1, releases, 1e-5) == gaussian_epsilon(noise, releases, 1e-5)


def test_the_account_says_unit_neighbours_and_assumption() -> None:
    fixed = CentralAccount.after(Privacy(clip=1.0, noise_multiplier=20.0), 12)
    assert fixed.words == "after 12 rounds: epsilon 1.33 at delta 1e-05 for one device (replaced by another)"
    sampled = CentralAccount.after(
        Privacy(clip=1.0, noise_multiplier=2.0, sampling="poisson", rate=0.1, devices=40), 1
    )
    assert "after 1 round: " in sampled.words
    assert "if devices are selected at random as announced" in sampled.words
    assert "for those who see the offers" in sampled.words
    assert (fixed.adjacency, sampled.adjacency) == ("replace_one", "add_or_remove_one")
    for one in (fixed, sampled):
        assert CentralAccount.of_json(one.as_json()) == one
    assert fixed.as_json()["words"] == fixed.words


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.split(".")[0] == "dp_accounting":
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Misconfigured, match=r"lichen\[privacy\]"):
        poisson_epsilon(1.7, 0.1, 3, 1e-5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sampling": "poisson"}, "rate"),
        ({"sampling": "poisson", "rate": 0.1}, "devices"),
        ({"rate": 0.1}, "only with sampling"),
        ({"devices": 3}, "only with sampling"),
        ({"unit": "window"}, "unit"),
        ({"clip": 0.0}, "clip"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ],
)
def test_a_wrong_table_names_the_key(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Privacy.model_validate({"clip": 1.0, "noise_multiplier": 1.0, **wrong})
