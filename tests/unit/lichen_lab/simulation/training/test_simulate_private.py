"""Simulated private rounds: FedAvg with its own client, the agent's clipping, the coordinator's noise."""

import numpy as np
import pytest

from lichen_lab.simulation.training.report import local_accounts
from lichen_lab.simulation.training.runner import simulate
from models.privacy.account import overlap, span_of
from models.privacy.central_account import CentralAccount
from models.privacy.clipping import norm_of
from models.privacy.local.renyi import epsilon_within, sampled_gaussian
from models.privacy.shared_noise import SharedNoise
from models.tensors import flatten
from protocol.errors import Misconfigured
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.tasks.folding import LocalPrivacy, Privacy, SecureAggregation
from protocol.tasks.rounds import Rounds
from tests.support.lab.simulated import task, windows

DEVICES = {f"d{n}": windows(40, n) for n in range(6)}
MILD = Privacy(clip=1.0, noise_multiplier=0.01)


def private(privacy: Privacy | None, count: int = 2):
    return task(method="fedavg", privacy=privacy, rounds=Rounds(count=count))


def values(state) -> np.ndarray:
    return np.concatenate([x.ravel() for x in flatten(state).values()])


def test_updates_are_clipped_noise_is_added_and_the_account_is_reported() -> None:
    norms: list[float] = []
    history = simulate(
        private(MILD),
        DEVICES,
        windows(60, 99),
        1,
        watch=lambda _, got: norms.extend(norm_of(u.tensors) for u in got),
    )
    assert len(norms) == 12
    assert 0.9 < max(norms) <= 1.0
    assert all(not record.refused for record in history.rounds)
    assert history.account == CentralAccount.after(MILD, 2)
    again = simulate(private(MILD), DEVICES, None, 1)
    np.testing.assert_array_equal(values(again.state), values(history.state))
    # the noise is there: only its amount differs
    other = simulate(private(MILD.model_copy(update={"noise_multiplier": 0.02})), DEVICES, None, 1, rounds=1)
    one = simulate(private(MILD), DEVICES, None, 1, rounds=1)
    difference = values(other.state) - values(one.state)
    assert 0.5 < difference.std() / (5**0.5 * 0.01 / 6) < 2.0


@pytest.mark.parametrize("secure", [None, SecureAggregation(min_devices=3)], ids=["plain", "secure"])
@pytest.mark.parametrize("method", ["tactfl", "disentafl"])
def test_other_methods_are_clipped_and_get_noise_too(method: str, secure: SecureAggregation | None) -> None:
    config = {
        "tactfl": {"weighting": "equal", "batch": 16},
        "disentafl": {"width": 16, "batch": 8, "lr": 0.01},
    }[method]
    its = private(MILD, 1).model_copy(
        update={"method": method, "config": config, "secure_aggregation": secure}
    )
    devices = {name: DEVICES[name] for name in ("d0", "d1", "d2")}
    norms: list[float] = []
    history = simulate(
        its,
        devices,
        None,
        1,
        labelled=windows(30, 50) if method == "tactfl" else None,
        watch=lambda _, got: norms.extend(norm_of(u.tensors) for u in got),
    )
    [record] = history.rounds
    assert list(record.accepted) == ["d0", "d1", "d2"]
    assert 0.9 < max(norms) <= 1.0
    assert record.weighing is None
    assert ("head_loss" in record.trained) == (method == "tactfl")
    noise = None if secure is None else SharedNoise.of(MILD, secure)
    assert history.account == CentralAccount.after(MILD, 1, shared=noise)
    less = its.model_copy(update={"privacy": MILD.model_copy(update={"noise_multiplier": 1e-4})})
    there = simulate(less, devices, None, 1, labelled=windows(30, 50) if method == "tactfl" else None).state
    moved = {
        name: history.state[name]
        for name in history.state
        if name.startswith(("encoder/", "base/", "expert/"))
    }
    difference = values(moved) - values({name: there[name] for name in moved})
    assert 0.5 < difference.std() / (0.01 / 3) < 2.0


@pytest.mark.long
def test_a_sample_takes_part_by_chance_and_rounds_end_at_the_limit() -> None:
    poisson = Privacy(
        clip=1.0, noise_multiplier=1.0, sampling="poisson", rate=0.4, devices=6, max_epsilon=6.0
    )
    history = simulate(private(poisson, 50), DEVICES, None, 3)
    assert 1 < len(history.rounds) < 50
    assert history.account is not None
    assert history.account.epsilon <= 6.0 < CentralAccount.after(poisson, len(history.rounds) + 1).epsilon
    assert history.ended == "one more version would exceed privacy.max_epsilon = 6"
    counts = [len(record.accepted) for record in history.rounds]
    assert len(set(counts)) > 1


@pytest.mark.long
def test_a_clip_that_adapts_comes_to_devices_in_one_process_and_in_two() -> None:
    adaptive = Privacy.model_validate(
        {"clip": 0.1, "noise_multiplier": 0.7, "adaptive_clip": {"count_noise": 0.4, "lr": 1.0}}
    )
    longest: list[float] = []
    history = simulate(
        private(adaptive, 4), DEVICES, None, 1,
        watch=lambda _, got: longest.append(max(norm_of(u.tensors) for u in got)),
    )  # fmt: skip
    assert history.account is not None
    assert history.account.clip is not None
    assert history.account.clip > 0.2
    assert longest == sorted(longest)
    assert longest[0] <= 0.1 < longest[1]
    assert not any(record.refused for record in history.rounds)
    two = simulate(private(adaptive, 4), DEVICES, None, 1, workers=2)
    np.testing.assert_array_equal(values(two.state), values(history.state))


def test_what_does_not_go_with_the_table_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(Misconfigured, match="method 'qqr'"):
        simulate(task(method="qqr", privacy=MILD, config={}), DEVICES, None, 1)
    little = MILD.model_copy(update={"max_epsilon": 0.1})
    with pytest.raises(Misconfigured, match="no version fits"):
        simulate(private(little), DEVICES, None, 1)


@pytest.mark.parametrize("lie", [1.001, 50.0])
def test_a_device_that_lies_about_its_clip_is_refused_and_the_round_goes_on(lie: float) -> None:
    def longer(frame: bytes, _round: int) -> bytes:
        header, tensors = decode_frame(frame, UpdateHeader)
        factor = np.float32(lie / norm_of(tensors))
        return encode_frame(header, {name: encode(x * factor, Codec.FLOAT32) for name, x in tensors.items()})

    [record] = simulate(private(MILD, 1), DEVICES, None, 1, tamper={"d2": longer}).rounds
    assert list(record.refused) == ["d2"]
    assert "privacy.clip is 1, to which the device must scale it" in record.refused["d2"]
    assert len(record.accepted) == 5


def test_noise_that_devices_share_is_drawn_as_their_sum() -> None:
    secure, options = SecureAggregation(min_devices=3), {"rounds": 1}
    shared = private(MILD).model_copy(update={"secure_aggregation": secure})
    history = simulate(shared, DEVICES, None, 1, **options)
    assert history.account == CentralAccount.after(MILD, 1, shared=SharedNoise.of(MILD, secure))
    plain = shared.model_copy(update={"privacy": MILD.model_copy(update={"noise_multiplier": 1e-3})})
    difference = values(history.state) - values(simulate(plain, DEVICES, None, 1, **options).state)
    # six devices add noise for three; what devices hold is rounded on its way down
    assert 0.5 < difference.std() / (2**0.5 * 0.01 / 6) < 3.0


def locally(noise: float = 1.0, count: int = 3, **more: float):
    local = LocalPrivacy.model_validate({"clip": 1.0, "noise_multiplier": noise, **more})
    its = {"epochs": 1, "batch": 10, "lr": 0.1}
    return task(method="fedavg", local_privacy=local, rounds=Rounds(count=count), config=its)


@pytest.mark.long
def test_devices_train_with_noise_and_each_has_an_account() -> None:
    history = simulate(locally(), DEVICES, windows(60, 99), 1)
    accounts = local_accounts(history, 1e-5)
    assert sorted(accounts) == sorted(DEVICES)
    per_round = sampled_gaussian(1.0, 0.25, 4)
    for account in accounts.values():
        assert account["updates"] == 3
        assert account["epsilon"] == pytest.approx(epsilon_within(3 * per_round, 1e-5))
        assert account["epsilon_moment"] > 1.5 * account["epsilon"]


@pytest.mark.long
def test_accounts_are_those_of_one_process_in_two_and_the_noise_is_no_seeds() -> None:
    one, two = (simulate(locally(), DEVICES, None, 1, workers=count) for count in (1, 2))
    assert local_accounts(one, 1e-5) == local_accounts(two, 1e-5)
    assert not np.array_equal(values(one.state), values(two.state))


def test_a_device_takes_no_part_when_its_account_is_full_and_says_so() -> None:
    moment = overlap(span_of(locally()), 0.5)
    two = epsilon_within(2 * sampled_gaussian(1.0, 0.25, 4, moment), 1e-5)
    history = simulate(locally(max_epsilon=two + 0.01), DEVICES, None, 1)
    assert [len(record.accepted) for record in history.rounds] == [6, 6, 0]
    assert "local_privacy.max_epsilon of the task" in history.rounds[2].refused["d0"]
    both = locally(count=1).model_copy(update={"privacy": MILD})
    [record] = simulate(both, DEVICES, None, 1).rounds
    assert len(record.accepted) == 6, "clip and noise of the device go with those of the fleet"
