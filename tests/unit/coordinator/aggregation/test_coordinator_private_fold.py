"""Noise in the fold: as much as the account says, the same when repeated, and on every value."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy import stats

from coordinator.aggregation.fold import UnusableUpdates, fold_screened, limits_for, screen_round
from coordinator.aggregation.partition import Grain, RoundInput, fold_by_tasks, fold_partially
from models.contract import Update
from models.privacy.noisy_fold import MIN_SIGMA, RoundNoise, sigma_of, sigma_trouble, steadied
from protocol.frames.frame import Limits
from protocol.frames.headers import UpdateHeader
from protocol.tasks.folding import Privacy
from tests.support.coordinator.fake import TinyServer, header, tiny_task

SIZE = 20_000
STATE = {"head": {"head/w": np.zeros(SIZE, np.float32)}}
LIMITS = limits_for(STATE, 1 << 26)
PRIVACY = Privacy(clip=2.0, noise_multiplier=0.5)
POISSON = Privacy(clip=2.0, noise_multiplier=0.5, sampling="poisson", rate=0.1, devices=60)
KEY = bytes(range(32))


@dataclass(frozen=True)
class Entry:
    """An accepted update in memory."""

    header: UpdateHeader
    value: float
    digest: str = field(default="")
    folder: None = None

    @property
    def device(self) -> str:
        return self.header.device

    def read(self, _limits: Limits) -> Update:
        return Update(self.header, {"head/w": np.full(SIZE, self.value, np.float32)})


def entries(*values: float) -> list[Entry]:
    return [Entry(header(f"d{n}", 1, "0" * 64), value, f"{n}{value}") for n, value in enumerate(values)]


def folded(privacy: Privacy, given: list[Entry], key: bytes = KEY) -> np.ndarray:
    task = tiny_task().model_copy(update={"privacy": privacy})
    noise = RoundNoise(privacy, key)
    return fold_screened(TinyServer(), task, 1, STATE, given, LIMITS, noise=noise)["head"]["head/w"]


def test_the_noise_of_the_mean_is_that_of_the_account() -> None:
    for privacy, divisor in ((PRIVACY, 4.0), (POISSON, 6.0)):
        mean_N = folded(privacy, entries(0.001, 0.002, 0.003, 0.002))
        expected = privacy.noise_multiplier * privacy.clip / divisor
        assert mean_N.std() == pytest.approx(expected, rel=0.02)
        assert stats.kstest((mean_N - 0.008 / divisor) / expected, "norm").pvalue > 1e-4


def test_a_repeated_fold_gives_the_same_bytes_in_any_order_and_partition() -> None:
    given = entries(0.001, 0.004, -0.002)
    expected = folded(PRIVACY, given)
    np.testing.assert_array_equal(folded(PRIVACY, given[::-1]), expected)
    task, server = tiny_task().model_copy(update={"privacy": PRIVACY}), TinyServer()
    its = RoundInput(task, 1, STATE, LIMITS)
    by_digest = {entry.digest: entry for entry in given}

    def run(tasks):
        for one in tasks:
            yield fold_partially(server, its, [by_digest[digest] for digest in one.digests], one.cut)

    noise = RoundNoise(PRIVACY, KEY)
    made = fold_by_tasks(server, its, STATE, given, run, Grain(updates=2), noise)
    np.testing.assert_array_equal(made["head"]["head/w"], expected)


def test_other_updates_and_other_rounds_have_other_noise() -> None:
    given = entries(0.001, 0.004, -0.002)
    whole, rest = folded(PRIVACY, given), folded(PRIVACY, given[:2])
    # the difference of two results does not give the missing update away: its noise is that of both
    difference_N = 3 * whole.astype(np.float64) - 2 * rest.astype(np.float64)
    assert difference_N.std() == pytest.approx(2**0.5 * PRIVACY.noise_multiplier * PRIVACY.clip, rel=0.03)
    assert (folded(PRIVACY, given, bytes(32)) != whole).mean() > 0.99
    weaker = PRIVACY.model_copy(update={"noise_multiplier": 0.25})
    other = 3 * folded(weaker, given).astype(np.float64) * 2 - 3 * whole.astype(np.float64)
    assert other.std() > 0.5  # not the same noise, scaled


def test_a_round_of_nobody_is_noise_alone() -> None:
    noise_N = folded(POISSON, [])
    assert noise_N.std() == pytest.approx(1.0 / 6.0, rel=0.02)


def test_a_private_task_is_never_folded_without_noise_nor_another_with() -> None:
    task = tiny_task().model_copy(update={"privacy": PRIVACY})
    with pytest.raises(ValueError, match="goes with a table"):
        fold_screened(TinyServer(), task, 1, STATE, entries(0.001), LIMITS)
    noise = RoundNoise(PRIVACY, KEY)
    with pytest.raises(ValueError, match="goes with a table"):
        fold_screened(TinyServer(), tiny_task(), 1, STATE, entries(0.001), LIMITS, noise=noise)


def test_noise_takes_no_running_variance_below_half_of_what_it_was() -> None:
    name = "encoder/acc/norm.running_var"
    before = {"encoder/acc": {name: np.array([1.0, 4.0, 2.0], np.float32)}, "head": {"head/w": np.ones(2)}}
    after = {
        "encoder/acc": {name: np.array([0.0, 3.0, 9.0], np.float32)},
        "head": {"head/w": np.zeros(2)},
    }
    made = steadied(before, after)
    np.testing.assert_array_equal(made["encoder/acc"][name], [0.5, 3.0, 9.0])
    assert made["encoder/acc"][name].dtype == np.float32
    assert made["head"] is after["head"]


def test_an_update_beyond_the_clip_is_not_folded_however_it_came_here() -> None:
    given = entries(0.001, 0.05)  # 20,000 values: norms of 0.14 and 7.1
    with pytest.raises(UnusableUpdates) as found:
        folded(PRIVACY, given)
    assert list(found.value.lost) == ["d1"]
    task, server = tiny_task().model_copy(update={"privacy": PRIVACY}), TinyServer()
    its = RoundInput(task, 1, STATE, LIMITS, privacy=PRIVACY)
    assert list(fold_partially(server, its, given, None)) == ["d1"]


def test_one_device_does_not_decide_whether_others_count() -> None:
    far = entries(0.001, 0.001, 0.001, 1.0)
    with pytest.raises(Exception, match="unusable"):
        screen_round(tiny_task(), far, LIMITS, {})
    screen_round(tiny_task().model_copy(update={"privacy": PRIVACY}), far, LIMITS, {})


def test_sensitivity_counts_rounding_to_steps() -> None:
    assert sigma_of(PRIVACY, 0) == pytest.approx(0.5 * 2.0 * 2**24, rel=1e-5)
    coarse = Privacy(clip=1e-3, noise_multiplier=1.0)
    # half a step in each of a million values
    assert sigma_of(coarse, 10**6) >= 1e-3 * 2**24 + 500
    one = replace(RoundNoise(PRIVACY, KEY))
    assert "KEY" not in repr(one)
    assert KEY.hex()[:8] not in repr(one)
    assert repr(KEY)[2:10] not in repr(one)


def test_a_table_that_no_noise_can_be_drawn_for_is_refused() -> None:
    assert not sigma_trouble(PRIVACY)
    tiny = Privacy(clip=1e-6, noise_multiplier=1.0)
    assert tiny.clip * 2**24 < MIN_SIGMA
    assert "clip times noise_multiplier is 1e-06" in sigma_trouble(tiny)
    assert "must be from" in sigma_trouble(Privacy(clip=1e6, noise_multiplier=10.0))
    adaptive = {"clip": 100.0, "noise_multiplier": 1.0, "adaptive_clip": {"count_noise": 1.0}}
    assert "must be from" in sigma_trouble(Privacy.model_validate(adaptive))
    assert not sigma_trouble(Privacy.model_validate({**adaptive, "clip": 1.0}))


def test_a_fold_with_parts_that_are_no_sums_gets_no_noise() -> None:
    class Flagged:
        def parts(self):
            return {"flags": object()}

    with pytest.raises(TypeError, match="no sums"):
        RoundNoise(PRIVACY, KEY).add(Flagged(), [])
