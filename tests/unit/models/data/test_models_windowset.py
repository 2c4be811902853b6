import zipfile
from dataclasses import replace

import numpy as np
import pytest

from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Window
from tests.support.tasks import sensors, small_task

TASK = small_task(sensors(acc=(3, 10), mic=(1, 20)), "ab", window=Window(length_s=1))


def some(count: int = 4) -> WindowSet:
    rng = np.random.default_rng(0)
    return WindowSet(
        x={
            "acc": rng.normal(size=(count, 3, 10)).astype(np.float32),
            "mic": rng.normal(size=(count, 1, 20)).astype(np.float32),
        },
        present_BM=rng.random((count, 2)) < 0.5,
        quality_BM=rng.random((count, 2)).astype(np.float32),
        y_B=np.arange(count) % 3 - 1,
    )


def same(a: WindowSet, b: WindowSet) -> bool:
    return (
        a.x.keys() == b.x.keys()
        and all(np.array_equal(a.x[n], b.x[n]) for n in a.x)
        and np.array_equal(a.present_BM, b.present_BM)
        and np.array_equal(a.quality_BM, b.quality_BM)
        and np.array_equal(a.y_B, b.y_B)
    )


def test_a_set_survives_the_disk_and_equal_sets_are_equal_files(tmp_path):
    window_set.save(tmp_path / "a.npz", some())
    window_set.save(tmp_path / "b.npz", some())
    assert same(window_set.load(tmp_path / "a.npz", TASK), some())
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_an_empty_set_fits_its_task_and_survives_the_disk(tmp_path):
    window_set.save(tmp_path / "e.npz", window_set.empty(TASK))
    assert len(window_set.load(tmp_path / "e.npz", TASK)) == 0


def test_parts_put_together_are_the_whole():
    whole = some(7)
    parts = [window_set.select(whole, [0, 1]), window_set.select(whole, np.arange(7) >= 2)]
    assert same(window_set.concat([*parts, window_set.empty(TASK)]), whole)
    with pytest.raises(ValueError, match="at least one"):
        window_set.concat([])
    with pytest.raises(ValueError, match="different modalities"):
        window_set.concat([whole, replace(whole, x={"acc": whole.x["acc"]})])


def test_windows_of_a_mask_are_a_copy_unless_it_is_all_of_them():
    whole = some(7)
    assert window_set.where(whole, np.ones(7, np.bool_)) is whole
    first = window_set.where(whole, np.arange(7) < 2)
    assert same(first, window_set.select(whole, [0, 1]))
    assert not any(np.shares_memory(first.x[name], x) for name, x in whole.x.items())


def test_counts_are_of_labelled_windows_in_which_the_modality_is_there():
    windows = replace(
        some(), present_BM=np.array([[1, 0], [1, 1], [0, 1], [1, 1]], bool), y_B=np.array([0, 1, 1, -1])
    )
    assert window_set.counts(windows, TASK) == {"acc": (1, 1), "mic": (0, 2)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": {"acc": np.zeros((4, 3, 10), np.float32)}}, "modalities acc"),
        ({"x": {**some().x, "acc": np.zeros((4, 3, 9), np.float32)}}, r"x/acc has shape \(4, 3, 9\)"),
        ({"x": {**some().x, "mic": np.full((4, 1, 20), np.nan, np.float32)}}, "x/mic holds NaN"),
        ({"present_BM": np.ones((4, 3), bool)}, "present has shape"),
        ({"quality_BM": np.ones((3, 2), np.float32)}, "quality has shape"),
        ({"y_B": np.array([0, 1, 2, 0])}, "classes 0 to 1"),
        ({"y_B": np.array([0, 1, -2, 0])}, "classes 0 to 1"),
    ],
)
def test_a_set_that_does_not_fit_the_task_is_named_with_its_file(tmp_path, change, words):
    window_set.save(tmp_path / "x.npz", replace(some(), **change))
    with pytest.raises(Misconfigured, match=words) as caught:
        window_set.load(tmp_path / "x.npz", TASK)
    assert "x.npz" in str(caught.value)


def test_a_file_that_is_missing_foreign_or_cut_is_named(tmp_path):
    with pytest.raises(Misconfigured, match=r"nowhere\.npz"):
        window_set.load(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(Misconfigured, match=r"text\.npz"):
        window_set.load(tmp_path / "text.npz")
    window_set.save(tmp_path / "cut.npz", some())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-100])
    with pytest.raises(Misconfigured, match=r"cut\.npz"):
        window_set.load(tmp_path / "cut.npz")
    np.savez(tmp_path / "less.npz", present=np.ones((1, 2)), y=np.zeros(1, int))
    with pytest.raises(Misconfigured, match=r"less\.npz.*quality"):
        window_set.load(tmp_path / "less.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(Misconfigured, match=r"one\.npy"):
        window_set.load(tmp_path / "one.npy")
    np.savez(tmp_path / "code.npz", present=np.array([{}], object), quality=[1], y=[1])
    with pytest.raises(Misconfigured, match=r"code\.npz"):
        window_set.load(tmp_path / "code.npz")


def test_elements_without_a_size_take_no_memory(tmp_path):
    """An empty entry may claim any number of them, and numpy makes each a byte long."""
    text = b"{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000,), }\n"
    with zipfile.ZipFile(tmp_path / "lying.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(Misconfigured, match="elements without a size"):
        window_set.load(tmp_path / "lying.npz")


def test_an_image_of_another_size_is_refused_with_the_size_that_is_needed():
    camera = Modality(name="camera", kind="image", channels=3, height=4, width=5, rate_hz=5)
    task = small_task((camera,), "ab")
    ones = np.ones((2, 1), bool)
    made = WindowSet(
        {"camera": np.zeros((2, 3, 4, 5), np.float32)}, ones, ones.astype(np.float32), np.zeros(2, int)
    )
    words = r"x/camera has shape \(2, 3, 4, 5\), .*needs \(2, 3, 20\): images of 4 x 5 pixels"
    with pytest.raises(Misconfigured, match=words):
        window_set.check(made, task)
    rows = replace(made, x={"camera": made.x["camera"].reshape(2, 3, 20)})
    assert window_set.check(rows, task) is rows
