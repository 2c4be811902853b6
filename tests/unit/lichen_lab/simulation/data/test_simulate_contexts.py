"""Faults of simulated streams reach into the contexts of their windows."""

import numpy as np

from lichen_lab.simulation.data.streams import with_noise, without_modality
from models.contract import WindowSet
from models.data.window_set import check
from tests.unit.edge_agent.windows.test_agent_contexts import TASK, context_of, windows


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def given() -> WindowSet:
    return windows([0, 1, 2, 0, 1, 2, 0, 1])


def test_a_modality_that_is_lost_leaves_nothing_of_its_context():
    found = check(without_modality(given(), 1.0, rng()), TASK)
    gone = given().present_BM & ~found.present_BM
    assert gone.any()
    assert not context_of(found).points_BM[gone].any()
    kept = found.present_BM
    np.testing.assert_array_equal(context_of(found).points_BM[kept], context_of(given()).points_BM[kept])


def test_noise_is_on_what_came_before_the_window_too():
    found, clean = check(with_noise(given(), "acc", 10.0, rng()), TASK), context_of(given())
    np.testing.assert_array_equal(context_of(found).x["gyr"], clean.x["gyr"])
    noise = context_of(found).x["acc"] - clean.x["acc"]
    known = np.arange(256) >= 256 - clean.points_BM[:, 0, None]
    for b in range(len(found)):
        assert not noise[b][:, ~known[b]].any(), "where nothing was seen there is nothing"
        here = noise[b][:, known[b]]
        assert here.std() > 0.2
    past = noise[..., :128][np.broadcast_to(known[:, None, :128], noise[..., :128].shape)]
    assert abs(past.std() / noise[..., 128:].std() - 1) < 0.1, "as loud"


def test_windows_without_contexts_get_the_noise_they_always_got():
    bare = WindowSet(given().x, given().present_BM, given().quality_BM, given().y_B)
    noisy = with_noise(bare, "acc", 10.0, rng())
    assert noisy.context is None
    np.testing.assert_array_equal(noisy.x["acc"], with_noise(given(), "acc", 10.0, rng()).x["acc"])
