"""QQR: modality dropout, the loss of whole modalities by chance while training."""

import numpy as np
import pytest
import torch

from models.methods.qqr.prototypes import rounds_name
from models.training import local
from tests.support.methods.qqr_cases import task, train, windows, with_prototypes, without


def kept(present_BM, share, droppable_BM=None, seed=0):
    droppable_BM = present_BM if droppable_BM is None else droppable_BM
    return local.kept(present_BM, droppable_BM, share, torch.Generator().manual_seed(seed))


def test_each_modality_goes_with_the_set_probability_and_never_the_last_one():
    keep_BM = kept(torch.ones(20_000, 2, dtype=torch.bool), 0.3)
    assert keep_BM.any(dim=1).all()
    # 0.3, less half of the 0.09 in which both would have gone and one stays
    lost_M = 1 - keep_BM.double().mean(dim=0)
    np.testing.assert_allclose(lost_M, [0.255, 0.255], atol=0.015)


def test_what_is_missing_stays_missing_and_an_only_modality_stays():
    present_BM = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])
    for seed in range(20):
        keep_BM = kept(present_BM, 0.99, seed=seed)
        assert not (keep_BM & ~present_BM).any()
        assert keep_BM.any(dim=1).tolist() == [True, True, False]


def test_what_may_not_be_dropped_is_there_to_the_last():
    present_BM = torch.ones(500, 2, dtype=torch.bool)
    droppable_BM = torch.tensor([[True, False]]).expand(500, 2)
    keep_BM = kept(present_BM, 0.9, droppable_BM)
    assert keep_BM[:, 1].all()
    assert 0.8 < 1 - keep_BM[:, 0].double().mean() < 0.97


@pytest.mark.parametrize("impute", ["pnr", "zero_feature", "zero_input"])
def test_training_with_it_differs_and_is_repeatable(impute):
    state, name = with_prototypes(task()), "head/fc1.weight"
    off, on, again = (
        train(task(impute=impute, modality_dropout=share), windows(), state).tensors[name]
        for share in (0.0, 0.5, 0.5)
    )
    assert np.array_equal(on, again)
    assert not np.array_equal(on, off)


def test_a_dropped_modality_is_treated_as_a_missing_one(monkeypatch):
    """Dropping all of the gyroscope by chance is the same step as having none, but for its encoder."""
    state, name = with_prototypes(task()), "head/fc1.weight"
    options = {"impute": "pnr", "pce_on_incomplete": True}
    monkeypatch.setattr(local, "kept", lambda present_BM, *_: present_BM & torch.tensor([True, False]))
    dropped = train(task(modality_dropout=0.5, **options), windows(), state)
    monkeypatch.undo()
    missing = train(task(**options), without(windows(), 1, np.arange(12) >= 0), state)
    assert np.array_equal(dropped.tensors[name], missing.tensors[name])
    assert np.array_equal(dropped.tensors["encoder/acc/fc.weight"], missing.tensors["encoder/acc/fc.weight"])
    assert not any(n.startswith("encoder/gyro") for n in dropped.tensors)


def test_what_would_have_to_wait_for_a_prototype_is_not_dropped(monkeypatch):
    state = with_prototypes(task())
    state["prototypes/gyro"][rounds_name("gyro")] = np.float32([1, 0, 1])
    asked = []

    def spy(present_BM, droppable_BM, *_):
        asked.append(droppable_BM)
        return present_BM

    monkeypatch.setattr(local, "kept", spy)
    train(task(modality_dropout=0.5, missing_prototype="wait"), windows(), state)
    assert asked[0].sum(dim=0).tolist() == [12, 8]
    train(task(modality_dropout=0.5, missing_prototype="wait", impute="mean_feature"), windows(), state)
    assert asked[1].all()
    train(task(modality_dropout=0.5), windows(), state)
    assert asked[2].all()
