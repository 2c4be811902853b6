"""A coordinator begins version 0 from a file of weights, if they are of its task."""

from pathlib import Path

import numpy as np
import pytest

from coordinator.workers.start_weights import load_start_weights
from models.tensors import flatten, write_npz
from protocol.errors import Misconfigured

FRESH = {"head": {"head/w": np.zeros((2, 3), np.float32), "head/b": np.zeros(2, np.float32)}}


def written(path: Path, **changes: np.ndarray) -> Path:
    tensors = {name: tensor + 1 for name, tensor in flatten(FRESH).items()}
    write_npz(path, tensors | {name.replace("_", "/"): tensor for name, tensor in changes.items()})
    return path


def test_weights_of_the_task_replace_the_fresh_ones(tmp_path: Path) -> None:
    state = load_start_weights(FRESH, written(tmp_path / "w.npz"))
    assert {*state} == {"head"}
    assert all((tensor == 1).all() for tensor in state["head"].values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_b": np.zeros(3, np.float32)}, r"'head/b' has shape \(3,\), and the task's has \(2,\)"),
        ({"tail_b": np.zeros(3, np.float32)}, "'tail/b' has shape .* and is not in the task's network"),
    ],
)
def test_weights_of_another_task_are_refused_by_tensor(
    tmp_path: Path, changes: dict[str, np.ndarray], words: str
) -> None:
    file = written(tmp_path / "w.npz", **changes)
    with pytest.raises(Misconfigured, match=words):
        load_start_weights(FRESH, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"none\.npz"):
        load_start_weights(FRESH, tmp_path / "none.npz")
