"""The Rényi divergence of DP-SGD: dp-accounting's and Opacus's, of several windows by two other ways."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from opacus.accountants.analysis import rdp as opacus_rdp

from models.privacy.account import epsilon_of, rho_within
from models.privacy.local.renyi import ORDERS, Spending, epsilon_within, sampled_gaussian

GRID = [
    (1.0, 0.01, 1000),
    (0.5, 0.1, 50),
    (2.0, 0.3, 200),
    (0.3, 0.001, 10),
    (4.0, 0.05, 3000),
    (1.1, 1.0, 20),
]
DELTA = 1e-5


@pytest.mark.parametrize(("noise", "rate", "steps"), GRID)
def test_divergence_and_epsilon_are_those_of_opacus_and_of_dp_accounting(
    noise: float, rate: float, steps: int
) -> None:
    orders = list(ORDERS)
    made = sampled_gaussian(noise, rate, steps)
    theirs = opacus_rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=orders)
    np.testing.assert_allclose(made, theirs, rtol=1e-4)
    epsilon, _ = opacus_rdp.get_privacy_spent(orders=orders, rdp=theirs, delta=DELTA)
    assert epsilon_within(made, DELTA) == pytest.approx(epsilon, rel=1e-4)
    accountant = RdpAccountant(orders=orders)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    assert epsilon_within(made, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=0.01)


def by_expansion(order: int, noise: float, rate: float, windows: int) -> float:
    """For a whole order: the mixture to this power, multiplied out, under the normal distribution."""
    weights = [math.comb(windows, j) * rate**j * (1 - rate) ** (windows - j) for j in range(windows + 1)]
    total = 0.0
    for chosen in itertools.product(range(windows + 1), repeat=order):
        weight = math.prod(weights[j] for j in chosen)
        total += weight * math.exp((sum(chosen) ** 2 - sum(j * j for j in chosen)) / (2 * noise**2))
    return math.log(total) / (order - 1)


@pytest.mark.parametrize(("windows", "order"), [(1, 6), (2, 2), (2, 5), (3, 4), (5, 3)])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (2.5, 0.4), (0.7, 0.02)])
def test_several_windows_agree_with_the_mixture_multiplied_out(
    windows: int, order: int, noise: float, rate: float
) -> None:
    made = sampled_gaussian(noise, rate, 1, windows, np.array([float(order)]))
    assert made[0] == pytest.approx(by_expansion(order, noise, rate, windows), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("windows", "rate", "noise", "steps"), [(2, 0.05, 1.0, 100), (3, 0.02, 1.5, 500)])
def test_the_epsilon_of_several_windows_is_above_that_of_privacy_loss_distributions(
    windows: int, rate: float, noise: float, steps: int
) -> None:
    weights = [math.comb(windows, j) * rate**j * (1 - rate) ** (windows - j) for j in range(windows + 1)]
    losses = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise, list(range(windows + 1)), weights, value_discretization_interval=1e-3
    )
    tight = losses.self_compose(steps).get_epsilon_for_delta(DELTA)
    assert tight <= epsilon_within(sampled_gaussian(noise, rate, steps, windows), DELTA) <= 1.2 * tight


def test_more_windows_more_steps_and_a_larger_rate_cost_more() -> None:
    costs = [
        epsilon_within(sampled_gaussian(*of), DELTA)
        for of in [
            (2.0, 0.01, 9, 1),
            (2.0, 0.01, 90, 1),
            (2.0, 0.1, 90, 1),
            (2.0, 0.1, 90, 2),
            (1.0, 0.1, 90, 2),
        ]
    ]
    assert costs == sorted(costs)
    assert costs[3] > 2 * costs[2]


def test_no_step_costs_nothing_and_a_large_group_is_bounded_in_memory_and_still_counted() -> None:
    assert not sampled_gaussian(1.0, 0.1, 0).any()
    most = epsilon_within(sampled_gaussian(0.3, 0.05, 1, 80), DELTA)
    assert 1e3 < most < math.inf


def test_gaussian_mechanisms_and_training_add_up() -> None:
    trained = Spending(curve=sampled_gaussian(1.5, 0.05, 300))
    both = trained + Spending(0.25)
    by_hand = (trained.curve + 0.25 * ORDERS, 0.25)
    assert both.epsilon(DELTA) == pytest.approx(epsilon_within(by_hand[0], DELTA))
    assert max(trained.epsilon(DELTA), epsilon_of(0.25, DELTA) / 1.3) < both.epsilon(DELTA)
    assert both.epsilon(DELTA) < trained.epsilon(DELTA) + epsilon_of(0.25, DELTA)
    assert (trained + Spending(math.inf)).epsilon(DELTA) == math.inf
    assert Spending(0.25).epsilon(DELTA) == epsilon_of(0.25, DELTA)


@pytest.mark.parametrize("spent", [Spending(0.2), Spending(0.2, sampled_gaussian(2.0, 0.1, 40))])
def test_what_is_left_is_what_may_be_spent(spent: Spending) -> None:
    left = spent.rho_left(9.0, DELTA)
    assert (spent + Spending(left)).epsilon(DELTA) == pytest.approx(9.0, rel=1e-6)
    assert spent.rho_left(0.001, DELTA) == 0
    assert Spending(math.inf).rho_left(9.0, DELTA) == 0
    assert Spending().rho_left(9.0, DELTA) == pytest.approx(rho_within(9.0, DELTA))
