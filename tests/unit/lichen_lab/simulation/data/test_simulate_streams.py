import numpy as np
import pytest

from lichen_lab.simulation.data.streams import Evolving, dirichlet_pools, rng_of, with_noise, without_modality
from models.contract import WindowSet


def windows(count: int = 400) -> WindowSet:
    rng = rng_of(0)
    return WindowSet(
        x={
            "a": rng.normal(3.0, 2.0, (count, 3, 16)).astype(np.float32),
            "b": rng.normal(0.0, 0.5, (count, 2, 8)).astype(np.float32),
        },
        present_BM=np.ones((count, 2), np.bool_),
        quality_BM=np.full((count, 2), 0.9, np.float32),
        y_B=np.arange(count, dtype=np.int64) % 5,
    )


def test_simulate_missing_never_takes_the_last_modality_and_zeroes_what_it_takes() -> None:
    before = windows()
    once = without_modality(before, 0.9, rng_of(1))
    assert (~once.present_BM).any(axis=1).sum() == 360
    twice = without_modality(once, 1.0, rng_of(2))
    assert (twice.present_BM.sum(axis=1) == 1).all()
    for column, name in enumerate(("a", "b")):
        gone = ~twice.present_BM[:, column]
        assert not twice.x[name][gone].any()
        assert (twice.x[name][~gone] == before.x[name][~gone]).all()
        assert (twice.quality_BM[gone, column] == 1).all()
    assert before.present_BM.all()


@pytest.mark.parametrize("snr_db", [10.0, 0.0, -5.0])
def test_simulate_noise_has_the_ratio_asked_for_per_channel(snr_db: float) -> None:
    before = windows()
    after = with_noise(before, "a", snr_db, rng_of(3))
    added = after.x["a"] - before.x["a"]
    found = 10 * np.log10(before.x["a"].var(axis=(0, 2)) / added.var(axis=(0, 2)))
    assert np.allclose(found, snr_db, atol=0.3)
    assert (after.quality_BM == np.array([0.0, 0.9], np.float32)).all()
    assert (after.x["b"] == before.x["b"]).all()


def test_simulate_noise_leaves_missing_windows_zero() -> None:
    masked = without_modality(windows(), 1.0, rng_of(4))
    after = with_noise(masked, "a", 0.0, rng_of(5))
    assert not after.x["a"][~masked.present_BM[:, 0]].any()
    assert (after.quality_BM[~masked.present_BM[:, 0], 0] == 1).all()


def test_simulate_pools_have_the_size_asked_for_and_small_alpha_is_uneven() -> None:
    y = windows().y_B
    even = dirichlet_pools(y, 4, 100, 1000.0, rng_of(6))
    uneven = dirichlet_pools(y, 4, 100, 0.1, rng_of(6))
    assert [len(pool) for pool in even + uneven] == [100] * 8
    largest = [np.bincount(y[pool], minlength=5).max() / 100 for pool in even + uneven]
    assert max(largest[:4]) < 0.35 < min(largest[4:])
    assert len(set(even[0].tolist())) == 100


def test_simulate_the_evolving_set_moves_by_its_step_and_is_the_same_when_asked_again() -> None:
    stream = Evolving(windows(), seed=7, size=100, step=20, missing_share=0.5, affected_rounds=0.5)
    assert (stream.at(1).y_B == windows().y_B[:100]).all()
    assert (stream.at(3).y_B == windows().y_B[40:140]).all()
    assert (stream.at(20).y_B == np.roll(windows().y_B, -380)[:100]).all()
    affected = [not stream.at(round_).present_BM.all() for round_ in range(1, 41)]
    assert 8 <= sum(affected) <= 32
    again = Evolving(windows(), seed=7, size=100, step=20, missing_share=0.5, affected_rounds=0.5)
    assert all((stream.at(r).present_BM == again.at(r).present_BM).all() for r in range(1, 41))
    other = Evolving(windows(), seed=8, size=100, step=20, missing_share=0.5, affected_rounds=0.5)
    assert affected != [not other.at(round_).present_BM.all() for round_ in range(1, 41)]
