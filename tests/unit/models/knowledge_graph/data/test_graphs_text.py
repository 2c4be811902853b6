"""Texts as features: alike texts are near each other, the same texts give the same bytes."""

from pathlib import Path

import numpy as np
import pytest

from models.knowledge_graph.data.text_features import BUCKETS, TextEncoder, count
from models.tensors import write_npz
from protocol.errors import Misconfigured

TEXTS = (
    *("heat pump in the cellar", "heat pumps of the cellar", "water pump in the cellar"),
    *("thermometer in the attic", "hygrometer in the attic", "barometer in the attic"),
    *("Zoë, caretaker of the house", "Yan, caretaker of the house", "Xu, owner of the house"),
)


def dense(texts: tuple[str, ...], buckets: int = BUCKETS) -> np.ndarray:
    counted = count(texts, buckets)
    x_EB = np.zeros((counted.texts, buckets), np.float32)
    x_EB[counted.row_n, counted.bucket_n] = counted.count_n
    return x_EB


def test_every_ngram_is_counted_once():
    """With spaces at its ends, a text of c characters has c + 3 - n n-grams of length n: 2, 3, 4."""
    for text in ("pump", "a", "Zoë", "水泵", "🌡 sensor"):
        c = len(text)
        wanted = sum(max(0, c + 3 - n) for n in (2, 3, 4))
        assert dense((text,)).sum() == wanted
    abab_B = dense((" abab",))[0]
    assert sorted(abab_B[abab_B > 0].tolist()) == [1] * 10 + [2]  # "ab" is there twice


def test_looks_are_not_meanings():
    rows = dense(("Heat  Pump", "heat pump", " \uff28\uff25\uff21\uff34\tPUMP\n", "heat pumps"))
    assert (rows[:3] == rows[1]).all()
    assert (rows[3] != rows[1]).any()


def test_no_ngram_spans_two_texts():
    apart = dense(("pump", "", "cellar"))
    assert np.array_equal(apart[0], dense(("pump",))[0])
    assert not apart[1].any()
    assert np.array_equal(apart[2], dense(("cellar",))[0])


def test_alike_texts_are_nearer_than_others():
    encoder = TextEncoder.fit(TEXTS, 6)
    x_EF = encoder.encode(TEXTS)
    near_EE = x_EF @ x_EF.T
    kind_E = np.arange(9) // 3
    for e in range(9):
        others = np.arange(9) != e
        same = others & (kind_E == kind_E[e])
        assert near_EE[e, same].max() > near_EE[e, ~same & others].max()
    assert np.linalg.norm(x_EF, axis=1) == pytest.approx(np.ones(9), abs=1e-6)
    assert x_EF.dtype == np.float32


def test_the_basis_is_the_truncated_svd_of_the_weighed_counts():
    """Compared with numpy's own, complete one; a direction's sign is free."""
    buckets, width = 512, 4
    encoder = TextEncoder.fit(TEXTS, width, buckets=buckets)
    x_EB = dense(TEXTS, buckets)
    df_B = (x_EB > 0).sum(axis=0)
    weighed_EB = np.where(x_EB > 0, 1 + np.log(np.maximum(x_EB, 1)), 0) * (np.log(10 / (1 + df_B)) + 1)
    weighed_EB /= np.linalg.norm(weighed_EB, axis=1, keepdims=True)
    right_BF = np.linalg.svd(weighed_EB)[2][:width].T
    strongest_F = np.abs(encoder.basis_BF).argmax(axis=0)
    assert (encoder.basis_BF[strongest_F, np.arange(width)] > 0).all(), "which is fixed here"
    agreed = np.abs((encoder.basis_BF * right_BF).sum(axis=0))
    assert agreed == pytest.approx(np.ones(width), abs=1e-4)
    x_EF = weighed_EB @ encoder.basis_BF
    assert encoder.encode(TEXTS) == pytest.approx(
        x_EF / np.linalg.norm(x_EF, axis=1, keepdims=True), abs=1e-5
    )


def test_the_same_texts_and_seed_give_the_same_bytes():
    one, two = TextEncoder.fit(TEXTS, 5, seed=3), TextEncoder.fit(TEXTS, 5, seed=3)
    assert one.basis_BF.tobytes() == two.basis_BF.tobytes()
    assert one.encode(TEXTS).tobytes() == two.encode(TEXTS).tobytes()


def test_a_texts_features_do_not_depend_on_the_others():
    encoder = TextEncoder.fit(TEXTS, 5)
    alone = np.concatenate([encoder.encode((text,)) for text in TEXTS])
    assert np.array_equal(alone, encoder.encode(TEXTS))


def test_blocks_of_a_product_change_nothing(monkeypatch):
    whole = TextEncoder.fit(TEXTS, 5)
    monkeypatch.setattr("models.knowledge_graph.data.text_features._BLOCK", 7)
    parts = TextEncoder.fit(TEXTS, 5)
    assert parts.basis_BF == pytest.approx(whole.basis_BF, abs=1e-5)


def test_an_empty_text_has_no_features_and_few_texts_leave_some_empty():
    encoder = TextEncoder.fit(("pump", "", "cellar"), 6)
    x_EF = encoder.encode(("", "pump", "\n"))
    assert not x_EF[[0, 2]].any()
    assert x_EF[1].any()
    assert not encoder.basis_BF[:, 3:].any()
    assert not TextEncoder.fit(("", ""), 2).encode(("pump",)).any()
    assert encoder.encode(()).shape == (0, 6)


@pytest.mark.parametrize(("texts", "width"), [((), 2), (TEXTS, 0), (TEXTS, BUCKETS + 1)])
def test_nothing_is_fitted_to_nothing(texts, width):
    with pytest.raises(ValueError, match="nothing to fit"):
        TextEncoder.fit(texts, width)


def test_an_encoder_comes_back_as_it_was_saved(tmp_path: Path):
    encoder = TextEncoder.fit(TEXTS, 5)
    encoder.save(tmp_path / "encoder.npz")
    again = TextEncoder.load(tmp_path / "encoder.npz")
    assert again.encode(("a new pump",)).tobytes() == encoder.encode(("a new pump",)).tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"basis": np.zeros((4, 2))}, "key 'basis' must be float32"),
        ({"basis": np.zeros((3, 2), np.float32)}, "key 'basis' is not finite, or not as long"),
        ({"idf": np.full(4, np.inf, np.float32)}, "key 'idf' is not finite"),
        ({"idf": np.zeros((0,), np.float32)}, "key 'idf'"),
        ({"idf": np.array(["a"] * 4)}, "key 'idf'"),
    ],
)
def test_what_is_no_encoder_is_refused_by_key(tmp_path: Path, change, words):
    path = tmp_path / "encoder.npz"
    write_npz(path, {"idf": np.ones(4, np.float32), "basis": np.ones((4, 2), np.float32)} | change)
    with pytest.raises(Misconfigured, match=words):
        TextEncoder.load(path)
