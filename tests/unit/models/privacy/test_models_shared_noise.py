"""Noise that devices share: the bound of its account, the room in the ring, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from models.aggregation.exact_sums import FixedPointSum
from models.privacy.accountant import epsilon_after, gaussian_epsilon, releases_within
from models.privacy.central_account import CentralAccount
from models.privacy.discrete_gaussian import discrete_gaussian
from models.privacy.key_stream import KeyStream
from models.privacy.noisy_fold import RoundNoise
from models.privacy.shared_noise import SharedNoise, shared_noise, zcdp_epsilon
from protocol.secure_aggregation.ring import top_of
from protocol.tasks.folding import Privacy, SecureAggregation
from tests.support.tasks import sensors, small_task

PRIVACY = Privacy(clip=1.0, noise_multiplier=2.0)
OPTIONS = SecureAggregation(min_devices=5)


def noise_of(privacy: dict[str, Any] | None = None, **options: Any) -> SharedNoise:
    return SharedNoise.of(PRIVACY.model_copy(update=privacy or {}), OPTIONS.model_copy(update=options))


def summed(sigma: int, count: int) -> np.ndarray:
    """The exact distribution of a sum of discrete Gaussians, of which the middle is zero."""
    x = np.arange(-12 * sigma, 12 * sigma + 1)
    one = np.exp(-(x**2) / (2.0 * sigma**2))
    one /= one.sum()
    found = one
    for _ in range(count - 1):
        found = np.convolve(found, one)
    return found


@pytest.mark.parametrize("devices", [3, 5])
@pytest.mark.parametrize("order", [1.5, 4.0, 12.0])
def test_the_bound_holds_for_the_exact_sum_of_shares(devices: int, order: float) -> None:
    shares = SharedNoise(norm=3.0, sigma=4, devices=devices, level=3, ring_bits=32, fraction_bits=0)
    p, moved = summed(shares.sigma, devices), 6  # one device replaced: two norms
    left, right = p[moved:], p[:-moved]
    both = (left > 1e-290) & (right > 1e-290)
    terms = order * np.log(left[both]) + (1 - order) * np.log(right[both])
    spent = math.log(float(np.exp(terms).sum())) / (order - 1)
    assert spent <= order * shares.rho(devices) * (1 + 1e-6)
    assert spent >= 0.99 * order * shares.rho(devices), "the bound is not idle"


def test_the_shares_of_the_smallest_sum_make_the_multiplier() -> None:
    shares = noise_of()
    assert math.sqrt(5) * shares.sigma == pytest.approx(2.0 * 2**16, rel=1e-4)
    drawn = [discrete_gaussian(KeyStream(bytes([n]) * 32), shares.sigma, 20_000) for n in range(5)]
    assert np.sum(drawn, axis=0).std() == pytest.approx(2.0 * 2**16, rel=0.02)


@pytest.mark.parametrize("mu", [0.02, 0.1, 1.0, 6.0])
def test_epsilon_is_a_bound_of_the_gaussian_s_and_not_far_from_it(mu: float) -> None:
    exact = gaussian_epsilon(1 / mu, 1, 1e-5)
    assert 1.04 * exact <= zcdp_epsilon(mu**2 / 2, 1e-5) <= 1.13 * exact
    assert zcdp_epsilon(0.0, 1e-5) == 0.0


def test_the_account_says_who_adds_the_noise_and_what_collusion_costs() -> None:
    shares = noise_of({"noise_multiplier": 20.0})
    account = CentralAccount.after(PRIVACY.model_copy(update={"noise_multiplier": 20.0}), 4, shared=shares)
    assert account.honest == 5
    assert account.epsilon == shares.epsilon(4, 1e-5) == account.epsilon_of_seen
    # 2 of 5 honest: sqrt(2 / 5) of the noise
    half = zcdp_epsilon(4 * (2 / (20.0 * math.sqrt(2 / 5))) ** 2 / 2, 1e-5)
    assert account.epsilon_of_half == pytest.approx(half, rel=1e-3)
    assert account.words == (
        "after 4 rounds: epsilon 0.794 at delta 1e-05 for one device (replaced by another); devices add the "
        "noise: it holds against the coordinator as well, as long as 5 devices of each sum are honest; "
        "epsilon 1.31 if half of these are not"
    )
    assert account.as_json()["noise_by"] == "devices"
    assert CentralAccount.of_json(account.as_json()) == account
    central = CentralAccount.after(PRIVACY, 4).as_json()
    assert central["noise_by"] == "coordinator"
    assert "honest" not in central


def test_rounds_end_at_the_limit_of_this_account() -> None:
    shares, limited = noise_of(), PRIVACY.model_copy(update={"max_epsilon": 20.0})
    most = releases_within(limited, 1000, shares)
    assert epsilon_after(limited, most, shares) <= 20.0 < epsilon_after(limited, most + 1, shares)


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_there_is_room_for_a_sum_and_its_noise(bits: int) -> None:
    shares = noise_of(ring_bits=bits, fraction_bits=bits // 2 - 2)
    most = shares.capacity
    assert most >= 1
    assert not shares.room_trouble(most)
    assert shares.reach(most) <= top_of(bits) < shares.reach(most + 1)
    assert f"can wrap around in ring_bits = {bits}" in shares.room_trouble(most + 1)
    assert f"there is room for {most} " in shares.room_trouble(most + 1)


def test_the_fold_s_whole_numbers_have_room_for_the_noise_of_the_widest_ring() -> None:
    wide = noise_of({"clip": 1e4, "noise_multiplier": 1e4}, ring_bits=64, fraction_bits=2)
    assert wide.reach(wide.capacity) << (24 - 2) <= 2**62 < wide.reach(wide.capacity + 1) << (24 - 2)


def test_a_share_below_the_ring_s_steps_is_refused_in_words() -> None:
    assert not noise_of().trouble
    assert "is 2 steps; it must be from 4" in noise_of({"clip": 0.03}, fraction_bits=6).trouble
    assert (
        "lower secure_aggregation.fraction_bits" in noise_of({"clip": 1e6, "noise_multiplier": 1e4}).trouble
    )


def test_only_a_task_with_both_tables_has_shares() -> None:
    task = small_task(sensors(a=(1, 20.0)), "ab", privacy=PRIVACY, secure_aggregation=OPTIONS)
    assert shared_noise(task) == noise_of()
    assert shared_noise(task.model_copy(update={"privacy": None})) is None
    assert shared_noise(task.model_copy(update={"secure_aggregation": None})) is None


class OneSum:
    """A fold of one tensor."""

    def __init__(self) -> None:
        self.sum = FixedPointSum({"x": (20_000,)})

    def parts(self) -> dict[str, FixedPointSum]:
        """The sum."""
        return {"x": self.sum}


def test_a_simulation_draws_the_shares_as_their_sum() -> None:
    fold, shares = OneSum(), noise_of()
    fold.sum.add({"x": np.zeros(20_000, np.float32)})
    RoundNoise(PRIVACY, bytes(32), shares).add(fold, [f"{n}" for n in range(9)])  # type: ignore[arg-type]
    steps = fold.sum.partial()["totals"] / 2**8
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert steps.std() == pytest.approx(3 * shares.sigma, rel=0.02)
