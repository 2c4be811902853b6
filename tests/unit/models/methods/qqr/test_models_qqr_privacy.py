"""QQR's differential privacy: known closed forms, the noise's scale, the account, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import ClientContext, Update
from models.data.window_set import counts, select
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.client import QqrClient, make_client
from models.methods.qqr.privacy import noised, sensitivity
from models.methods.qqr.prototyper import QqrPrototyper, bounded, class_means
from models.methods.qqr.prototypes import values_name
from models.methods.qqr.server import make_server
from models.privacy import account as privacy
from models.privacy.account import Account, epsilon_of, rho_of, rho_within
from models.privacy.local.system_random import system_noise
from protocol.errors import Misconfigured, Transient
from protocol.frames.tensors import decode, encode
from tests.support.methods.qqr_cases import task, windows, without
from tests.support.tasks import update_header

PRIVATE = {"upload": "prototypes", "dp_noise": 2.0}


def no_noise(shape):
    return np.zeros(shape)


def summarised(the_task, some=None, private=None, draw=no_noise, round_=1):
    some = some or windows()
    rng = np.random.default_rng(1)
    z = {name: rng.normal(size=(len(some), 4)).astype(np.float32) for name in ("acc", "gyro")}
    context = ClientContext(the_task, "d", round_, 0)
    return QqrPrototyper(draw).summarise(context, some, z, private or {})


# --- closed forms


def test_rho_and_epsilon_are_those_of_the_gaussian_mechanism():
    assert rho_of(1.0) == 0.5
    assert rho_of(5.0) == pytest.approx(0.02)
    # 0.5 + 2 sqrt(0.5 ln(10^5))
    assert epsilon_of(0.5, 1e-5) == pytest.approx(5.298526, abs=1e-6)
    assert epsilon_of(0.0, 1e-5) == 0
    for epsilon in (0.1, 1.0, 20.0):
        assert epsilon_of(rho_within(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-9)


def test_epsilon_of_zcdp_is_above_the_gaussian_mechanisms_exact_one_and_not_far():
    """Balle and Wang 2018: delta of one Gaussian release exactly, at the epsilon that the account reports."""

    def tail(x):
        return 0.5 * math.erfc(x / math.sqrt(2))

    for noise in (0.8, 2.0, 10.0):
        epsilon = epsilon_of(rho_of(noise), 1e-5)
        mu = 1 / noise
        exact = tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2)
        assert 1e-8 < exact <= 1e-5


@given(st.integers(1, 30), st.integers(0, 2**32 - 1), st.sampled_from([True, False]))
def test_no_replaced_window_moves_a_mean_further_than_the_sensitivity(count, seed, normalise):
    rng = np.random.default_rng(seed)
    config = QqrConfig(normalise=normalise, prototype_clip=0 if normalise else 3)
    length = config.feature_scale if normalise else config.prototype_clip
    z_BD = (rng.normal(size=(count, 5)) * rng.choice([1e-3, 1, 1e3])).astype(np.float32)
    other_BD = z_BD.copy()
    other_BD[0] = -1e3 * z_BD[0] if seed % 2 else rng.normal(size=5)
    one_D, two_D = (class_means(bounded(z, config), np.zeros(count, int), 1)[0][0] for z in (z_BD, other_BD))
    most = sensitivity(np.array([count]), length)[0]
    assert np.linalg.norm(one_D.astype(float) - two_D) <= most * (1 + 1e-5)


# --- the noise


def test_the_noise_has_the_set_scale_and_the_shape_of_a_normal_one():
    draws = system_noise((400, 500))
    assert abs(draws.mean()) < 0.02
    assert draws.std() == pytest.approx(1, rel=0.02)
    for sigmas, share, margin in ((1.0, 0.3173, 0.05), (1.96, 0.05, 0.1), (3.0, 0.0027, 0.4)):
        assert (np.abs(draws) > sigmas).mean() == pytest.approx(share, rel=margin)
    assert np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1] == pytest.approx(0, abs=0.02)
    assert not np.array_equal(system_noise((4,)), system_noise((4,)))


def test_means_get_noise_of_so_many_sensitivities_by_class():
    count_K = np.array([10, 0, 40])
    v_KD = np.zeros((3, 60_000), np.float32)
    out_KD = noised(v_KD, count_K, 8.0, 1.5, system_noise)
    assert out_KD[0].std() == pytest.approx(1.5 * 2 * 8 / 10, rel=0.03)
    assert out_KD[2].std() == pytest.approx(1.5 * 2 * 8 / 40, rel=0.03)
    assert not out_KD[1].any()


def test_the_noise_is_added_to_the_mean_before_anything_else():
    asked = []

    def draw(shape):
        asked.append(shape)
        return np.full(shape, 0.1)

    options = PRIVATE | {"normalise": False, "prototype_clip": 3.0, "prototype_bits": 32}
    plain, made = (summarised(task(**options), draw=d) for d in (no_noise, draw))
    assert asked == [(3, 4), (3, 4)]
    name = values_name("acc")
    # four windows a class: 0.1 x 2.0 x 2 x 3 / 4
    expected = bounded(plain.tensors[name] + np.float32(0.3), QqrConfig(normalise=False, prototype_clip=3))
    np.testing.assert_allclose(made.tensors[name], expected, rtol=1e-5)


def test_the_rounds_seed_does_not_give_the_noise_away():
    the_task = task(**PRIVATE, prototype_bits=32)
    context = ClientContext(the_task, "d", 1, 0)
    client, state = make_client(), make_client().initial(the_task, 0)
    one, two = (client.train(context, windows(), state, {}).tensors[values_name("acc")] for _ in range(2))
    assert not np.array_equal(one, two)
    still = QqrClient(QqrPrototyper(no_noise))
    one, two = (still.train(context, windows(), state, {}).tensors[values_name("acc")] for _ in range(2))
    assert np.array_equal(one, two)


def test_a_noised_prototype_passes_the_coordinator():
    the_task = task(**PRIVATE | {"dp_noise": 50.0})
    some, server, state = windows(), make_server(), make_client().initial(the_task, 0)
    for round_ in range(20):
        result = summarised(the_task, some, draw=system_noise, round_=round_ + 1)
        header = update_header(the_task, weight=1, counts=counts(some, the_task), extra=result.extra)
        sent = {name: decode(encode(t, result.codecs[name])) for name, t in result.tensors.items()}
        server.check(the_task, state, Update(header, sent))


# --- the account

RHO = 1 / 8
"""Of one release at PRIVATE's noise."""


def spent(private, modality="acc"):
    return sorted(private[f"privacy/{modality}/rho"][1:].tolist())


def test_every_release_that_a_signal_is_in_is_charged_to_it():
    the_task, private = task(**PRIVATE), {}
    some = without(windows(), 1, windows().y_B == 2)  # class 2 has no gyroscope
    some.quality_BM[0, 0] = 0.1  # not used
    for round_ in (1, 2, 3):
        result = summarised(the_task, some, private, round_=round_)
        private = result.private
    assert spent(private, "acc") == [3 * RHO] * 11
    assert spent(private, "gyro") == [3 * RHO] * 8
    assert result.metrics["epsilon"] == pytest.approx(0.75 + 2 * math.sqrt(0.75 * math.log(1e5)), rel=1e-5)


def test_windows_of_a_class_too_small_to_be_sent_are_not_charged():
    few = windows(12)
    few = replace(few, y_B=np.where(np.arange(12) < 10, few.y_B % 2, 2))
    private = summarised(task(**PRIVATE, min_count=3), few).private
    assert spent(private) == [RHO] * 10


def test_what_leaves_costs_no_more_and_new_windows_begin_at_zero():
    the_task, many = task(**PRIVATE), windows(40)
    private, told = {}, []
    for round_ in range(1, 30):
        held = select(many, (np.arange(40) - round_) % 40 < 12)  # each stays for twelve rounds
        result = summarised(the_task, held, private, round_=round_)
        private = result.private
        told.append(result.metrics["epsilon"])
    assert max(spent(private)) == 12 * RHO
    assert told[11] == told[-1] == pytest.approx(epsilon_of(2 * 12 * RHO, 1e-5), rel=1e-5)
    # one that comes back later has not been forgotten
    back = summarised(the_task, select(many, np.arange(40) == 20), private, round_=30)
    assert back.metrics["epsilon"] == pytest.approx(epsilon_of(2 * 13 * RHO, 1e-5), rel=1e-5)


def test_signals_equal_to_the_last_bit_count_as_one_and_a_changed_one_as_new():
    some = windows()
    for name in some.x:
        some.x[name][3] = some.x[name][0]  # both of class 0
    private = summarised(task(**PRIVATE), some).private
    assert spent(private) == [RHO] * 11
    some.x["acc"][5] += 1e-3
    private = summarised(task(**PRIVATE), some, private, round_=2).private
    assert spent(private) == [RHO] * 2 + [2 * RHO] * 10


def test_the_forgotten_leave_behind_the_most_that_one_of_them_spent(monkeypatch):
    monkeypatch.setattr(privacy, "_REMEMBERED", 2)
    ledger = privacy.Ledger({1: 0.5, 2: 0.1}).after([3], 0.1).after([4], 0.1)
    assert (dict(ledger.rho), ledger.gone, ledger.most) == ({2: 0.1, 3: 0.1, 4: 0.1}, 0.5, 0.5)
    account = Account({"acc": ledger})
    kept = Account.of(account.tensors(), ("acc", "gyro"))
    assert kept.rho("acc", [4, 1]) == pytest.approx([0.1, 0])
    assert kept.epsilon(1e-5) == pytest.approx(epsilon_of(0.5, 1e-5))


def test_the_account_rounds_up_and_is_kept_where_noise_is_off_for_a_while():
    ids = [2**64 - 1, 12345678901234567890, 0]
    account = Account({"acc": privacy.Ledger(dict.fromkeys(ids, 1 / 3), 0.1)})
    kept = account.tensors()
    assert all(tensor.dtype == np.float32 for tensor in kept.values())
    again = Account.of(kept, ("acc",))
    assert (again.rho("acc", ids) >= 1 / 3).all()
    assert again.rho("acc", ids) == pytest.approx([1 / 3] * 3, rel=1e-6)
    state, context = make_client().initial(task(), 0), ClientContext(task(), "d", 1, 0)
    for private in (
        summarised(task(upload="prototypes"), private=kept).private,
        make_client().train(context, windows(), state, kept).private,
    ):
        assert all(np.array_equal(private[name], tensor) for name, tensor in kept.items())


def test_a_window_whose_budget_is_spent_makes_no_more_prototypes_and_new_ones_do():
    three_rounds = epsilon_of(2 * 3 * RHO, 1e-5)
    the_task = task(**PRIVATE, dp_epsilon_max=three_rounds)
    private, many = {}, windows(24)
    old = np.arange(24) < 12
    for round_ in (1, 2, 3):
        result = summarised(the_task, select(many, old), private, round_=round_)
        private = result.private
        assert result.metrics["withheld"] == 0
    both = summarised(the_task, many, private, round_=4)
    assert both.extra["prototypes"]["acc"]["counts"] == [4, 4, 4]
    assert both.metrics["withheld"] == 24
    assert both.metrics["epsilon"] == pytest.approx(three_rounds, rel=1e-5)
    with pytest.raises(Transient, match=r"'d', round 4: the privacy budget.*is spent.*dp_epsilon_max"):
        summarised(the_task, select(many, old), private, round_=4)


def test_without_noise_nothing_is_spent_or_said():
    result = summarised(task(upload="prototypes"))
    assert result.private == {}
    assert not {"epsilon", "withheld"} & result.metrics.keys()


# --- options


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dp_noise": 1.0}, 'upload = "prototypes"'),
        ({**PRIVATE, "normalise": False}, "normalise = true or prototype_clip"),
        ({**PRIVATE, "prototype_trim": 0.1}, "prototype_trim = 0"),
        ({"dp_epsilon_max": 3.0}, "dp_epsilon_max needs dp_noise"),
        ({"prototype_clip": 3.0}, "prototype_clip: with normalise"),
        ({"dp_delta": 0.0}, "dp_delta"),
    ],
)
def test_options_that_would_protect_nothing_are_refused_in_words(config, words):
    with pytest.raises(Misconfigured, match=words):
        METHOD.configure(task(**config))
