"""First values that follow from keys."""

import numpy as np

from models.knowledge_graph.data.initial_embeddings import hashed, initial_rows
from models.knowledge_graph.networks.triple_scores import SCORES
from models.methods.mmfed3_hide import MmFed3Config

KEYS = np.random.default_rng(0).integers(0, 256, (500, 16)).astype(np.uint8)


def test_a_key_has_the_same_values_in_whatever_company():
    whole = initial_rows(3, KEYS, 24, 0.5)
    np.testing.assert_array_equal(initial_rows(3, KEYS[[7, 3]], 24, 0.5), whole[[7, 3]])
    np.testing.assert_array_equal(initial_rows(3, KEYS, 8, 0.5), whole[:, :8])


def naive(seed: int, key: bytes, column: int) -> float:
    """In whole numbers of Python, from -1 to 1."""
    most, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & most
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & most
        return x ^ (x >> 31)

    assert mixed(golden) == 0xE220A8397B1DCDAF  # what splitmix64 begins with at 0
    state = mixed((seed + golden) & most)
    for at in (0, 8):
        state = (mixed(state ^ int.from_bytes(key[at : at + 8], "little")) + golden) & most
    return 2 * ((mixed((state + (column + 1) * golden) & most) >> 40) + 0.5) / (1 << 24) - 1


def test_values_are_those_of_every_machine():
    """Others would part the fleet: a device and its coordinator would begin an entity apart."""
    expected = [[naive(9, key.tobytes(), d) for d in range(5)] for key in KEYS[:4]]
    np.testing.assert_allclose(initial_rows(9, KEYS[:4], 5, 1.0), expected, rtol=0, atol=1e-7)


def test_values_are_even_in_the_span_and_do_not_hang_together():
    x_ED = initial_rows(0, KEYS, 64, 0.25)
    assert x_ED.dtype == np.float32
    assert np.abs(x_ED).max() <= 0.25
    assert abs(x_ED.mean()) < 0.005
    np.testing.assert_allclose(x_ED.std(), 0.25 / 3**0.5, rtol=0.02)
    across = np.corrcoef(x_ED, rowvar=False) - np.eye(64)
    assert np.abs(across).max() < 0.25


def test_another_seed_key_or_column_gives_other_values():
    x_ED = initial_rows(0, KEYS, 16, 1.0)
    near = KEYS[:1].copy()
    near[0, 15] ^= 1
    assert len(np.unique(x_ED)) > 0.99 * x_ED.size
    assert not np.isin(initial_rows(1, KEYS, 16, 1.0), x_ED).all(axis=1).any()
    assert not np.isin(initial_rows(0, near, 16, 1.0), x_ED[0]).any()


def test_nothing_has_no_values():
    assert initial_rows(0, KEYS[:0], 4, 1.0).shape == (0, 4)
    assert hashed(0, KEYS[:0]).shape == (0,)


def test_the_order_of_keys_in_a_triple_counts():
    assert (hashed(0, KEYS, KEYS[::-1]) != hashed(0, KEYS[::-1], KEYS)).mean() > 0.99


def test_the_span_is_that_of_the_score():
    for name, make in SCORES.items():
        config = MmFed3Config(score=name, dim=12, gamma=5.0)
        assert config.span == make(12, 5.0).span
