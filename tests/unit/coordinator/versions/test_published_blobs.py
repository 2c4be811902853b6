"""Blobs as devices hold them: what is rounded, how far, and what never is."""

import numpy as np
import pytest

from coordinator.versions.published_blobs import OWN_LIMITS, published
from protocol.frames.frame import decode_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec

NAME = "prototypes/acc"
VALUES, ROUNDS = f"{NAME}/values", f"{NAME}/rounds"
CODECS = {"rounds": Codec.FLOAT32}


def held(blob):
    return decode_frame(blob.frame, BlobHeader, OWN_LIMITS)[1]


@pytest.fixture
def states():
    """Prototypes of 40 classes, of which a round gave the first 30, and those of the round after."""
    rng = np.random.default_rng(0)
    seen = np.repeat(np.float32([1, 0]), [30, 10])
    first = {VALUES: rng.normal(0, 1, (40, 32)).astype(np.float32) * seen[:, None], ROUNDS: seen}
    second = {VALUES: first[VALUES] * np.float32(1.01), ROUNDS: first[ROUNDS] * np.float32(2)}
    fresh = {name: np.zeros_like(values) for name, values in first.items()}
    return fresh, first, second


def test_prototypes_travel_as_differences_and_counts_stay_exact(states):
    fresh, first, second = states
    empty = published(NAME, fresh, None, CODECS, 0.25)
    assert held(empty)[VALUES].tobytes() == fresh[VALUES].tobytes()
    made = published(NAME, first, empty.frame, CODECS, 0.25)
    after = published(NAME, second, made.frame, CODECS, 0.25)
    for blob, exact in ((made, first), (after, second)):
        assert held(blob)[ROUNDS].tobytes() == exact[ROUNDS].tobytes()
        assert not held(blob)[VALUES][30:].any(), "a class without a prototype has none"
        assert len(blob.difference) < len(blob.frame) / 4
    off = [
        float(np.abs(held(blob)[VALUES] - exact[VALUES]).max())
        for blob, exact in ((made, first), (after, second))
    ]
    assert 0 < off[0] <= 0.25
    assert off[1] < off[0], "the rounding error of a large change is in the next, small one"


def test_vectors_of_few_elements_are_exact_and_longer_ones_rounded():
    rng = np.random.default_rng(1)
    exact = {f"head/{n}": rng.normal(0, 1, n).astype(np.float32) for n in (15, 16)}
    blob = held(published("head", exact, None, {}, 2.0))
    assert blob["head/15"].tobytes() == exact["head/15"].tobytes()
    assert blob["head/16"].tobytes() != exact["head/16"].tobytes()


def test_running_statistics_are_exact_at_any_size():
    """Else a change of the largest variance would move the smallest one by many times its value."""
    name = "encoder/acc/norm.running_var"
    first = {name: np.geomspace(1e-4, 1e4, 256).astype(np.float32)}
    second = {name: first[name] * np.linspace(0.5, 2, 256, dtype=np.float32)}
    made = published("encoder/acc", first, None, {}, 2.0)
    after = published("encoder/acc", second, made.frame, {}, 2.0)
    assert held(made)[name].tobytes() == first[name].tobytes()
    assert held(after)[name].tobytes() == second[name].tobytes()
