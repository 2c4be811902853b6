from dataclasses import replace

import numpy as np
import pytest

from models.contract import Context, WindowSet
from models.data import window_set
from models.data.streams import context as contexts
from protocol.errors import Misconfigured
from protocol.tasks.task import Window
from tests.support.tasks import sensors, small_task

NAMES = ("acc", "mic")
TASK = small_task(sensors(acc=(3, 10), mic=(1, 20)), "ab", window=Window(length_s=1, context_s=2.5))
PLAIN = TASK.model_copy(update={"window": Window(length_s=1)})


def some(count: int = 4, seed: int = 0) -> WindowSet:
    rng = np.random.default_rng(seed)
    present_BM = rng.random((count, 2)) < 0.6
    points_BM = np.where(present_BM, rng.integers([10, 20], [26, 51], (count, 2)), 0)
    x = {
        "acc": rng.normal(size=(count, 3, 25)).astype(np.float32),
        "mic": rng.normal(size=(count, 1, 50)).astype(np.float32),
    }
    whole = contexts.masked(Context(x, points_BM), present_BM, NAMES)
    assert whole is not None
    ends = {"acc": whole.x["acc"][..., -10:], "mic": whole.x["mic"][..., -20:]}
    quality_BM = rng.random((count, 2)).astype(np.float32)
    return WindowSet(ends, present_BM, quality_BM, np.arange(count) % 3 - 1, context=whole)


def context_of(windows: WindowSet) -> Context:
    assert windows.context is not None
    return windows.context


def same(a: Context, b: Context) -> bool:
    return (
        a.x.keys() == b.x.keys()
        and all(np.array_equal(a.x[n], b.x[n]) for n in a.x)
        and np.array_equal(a.points_BM, b.points_BM)
    )


def test_contexts_survive_the_disk_and_equal_sets_are_equal_files(tmp_path):
    window_set.save(tmp_path / "a.npz", some())
    window_set.save(tmp_path / "b.npz", some())
    found = window_set.load(tmp_path / "a.npz", TASK)
    assert same(context_of(found), context_of(some()))
    assert {*found.x} == {*NAMES}
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_set_without_contexts_fits_a_task_that_keeps_them(tmp_path):
    window_set.save(tmp_path / "plain.npz", replace(some(), context=None))
    assert window_set.load(tmp_path / "plain.npz", TASK).context is None


def test_no_windows_have_contexts_in_the_tasks_shapes_or_none(tmp_path):
    window_set.save(tmp_path / "e.npz", window_set.empty(TASK))
    found = context_of(window_set.load(tmp_path / "e.npz", TASK))
    assert found.x["mic"].shape == (0, 1, 50)
    assert found.points_BM.shape == (0, 2)
    assert window_set.empty(PLAIN).context is None


def test_parts_put_together_are_the_whole():
    whole = some(7)
    parts = [window_set.select(whole, [0, 1]), window_set.select(whole, np.arange(7) >= 2)]
    assert same(context_of(window_set.concat([*parts, window_set.empty(TASK)])), context_of(whole))
    assert window_set.concat([replace(part, context=None) for part in parts]).context is None


def test_sets_with_and_without_contexts_or_of_other_lengths_are_not_mixed():
    whole, context = some(), context_of(some())
    with pytest.raises(ValueError, match="1 of 2 window sets have a context"):
        window_set.concat([whole, replace(whole, context=None)])
    shorter = Context({name: x[..., 1:] for name, x in context.x.items()}, context.points_BM)
    with pytest.raises(ValueError, match="different lengths"):
        window_set.concat([whole, replace(whole, context=shorter)])


def test_a_masked_modality_leaves_nothing_of_its_stretch():
    windows = some(6)
    keep_BM = np.array([[True, False]])
    found = contexts.masked(windows.context, keep_BM, NAMES)
    assert found is not None
    assert not found.x["mic"].any()
    assert not found.points_BM[:, 1].any()
    np.testing.assert_array_equal(found.x["acc"], context_of(windows).x["acc"])
    assert contexts.masked(None, keep_BM, NAMES) is None


def wrong(**changes: object) -> WindowSet:
    whole = some()
    present_BM, context = np.array([[1, 1], [1, 0], [0, 1], [1, 1]], bool), context_of(whole)
    points_BM = np.where(present_BM, [25, 50], 0)
    given = {"x": context.x, "points_BM": points_BM} | changes
    return replace(whole, present_BM=present_BM, context=Context(**given))  # type: ignore[arg-type]


X = context_of(some()).x


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": {"acc": X["acc"]}}, "modalities acc, task 't' has acc, mic"),
        ({"x": X | {"mic": X["mic"][..., 1:]}}, r"context/x/mic has shape .* needs \(4, 1, 50\)"),
        ({"x": X | {"mic": np.full_like(X["mic"], np.nan)}}, "context/x/mic holds NaN"),
        ({"x": X | {"acc": X["acc"] + 1}}, "context/x/acc does not end with the windows"),
        ({"points_BM": np.full((4, 2), 9)}, "context/points holds 9 for 'acc'; it must be 10 to 25"),
        ({"points_BM": np.array([[10, 20]] * 4)}, "context/points holds 10 for 'acc'"),
        ({"points_BM": np.array([[25, 51], [25, 0], [0, 20], [10, 50]])}, "holds 51 for 'mic'"),
        ({"points_BM": np.zeros((4, 1), int)}, r"context/points has shape \(4, 1\)"),
    ],
)
def test_a_context_that_does_not_fit_is_named_with_its_file(tmp_path, change, words):
    window_set.save(tmp_path / "x.npz", wrong(**change))
    with pytest.raises(Misconfigured, match=words) as caught:
        window_set.load(tmp_path / "x.npz", TASK)
    assert "x.npz" in str(caught.value)


def test_what_is_said_to_be_wrong_is_all_that_is_wrong(tmp_path):
    window_set.save(tmp_path / "x.npz", wrong())
    window_set.load(tmp_path / "x.npz", TASK)


def test_half_a_context_in_a_file_is_named(tmp_path):
    whole = some()
    window_set.save(tmp_path / "whole.npz", whole)
    with np.load(tmp_path / "whole.npz") as file:
        data = dict(file)
    for left_out, words in (("context/points", "'context/points'"), ("context/x/", "'context/x/<modality>'")):
        np.savez(tmp_path / "half.npz", **{k: v for k, v in data.items() if not k.startswith(left_out)})
        with pytest.raises(Misconfigured, match=rf"half\.npz: key {words} is not in it"):
            window_set.load(tmp_path / "half.npz", TASK)
    np.savez(tmp_path / "half.npz", **data | {"context/points": np.ones((3, 2), int)})
    with pytest.raises(Misconfigured, match=r"half\.npz: .*the same number of windows"):
        window_set.load(tmp_path / "half.npz")
    np.savez(tmp_path / "half.npz", **data | {"context/points": np.ones((4, 2))})
    with pytest.raises(Misconfigured, match=r"half\.npz: key 'context/points' holds float64, not integers"):
        window_set.load(tmp_path / "half.npz", TASK)


def test_a_task_that_keeps_windows_alone_takes_no_contexts(tmp_path):
    window_set.save(tmp_path / "x.npz", some())
    with pytest.raises(Misconfigured, match=r"window\.context_s is None"):
        window_set.load(tmp_path / "x.npz", PLAIN)
