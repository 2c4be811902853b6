from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lichen
from lichen.api.device_arrays import windows_of_arrays
from lichen.api.device_data import fleet_of, held_back
from models.contract import WindowSet
from models.data import window_set
from protocol.tasks.task import Modality, Target
from tests.support.tasks import sensors, small_task

TASK = small_task(sensors(acc=(3, 10), gyro=(1, 5)), ("rest", "walk", "run"))
ACC, GYRO = np.ones((4, 3, 20)), np.ones((4, 1, 10))


def read(**arrays: Any) -> WindowSet:
    return windows_of_arrays(TASK, arrays, "device 'd'")


def test_api_arrays_become_the_windows_that_a_file_would_hold() -> None:
    made = read(acc=ACC, gyro=GYRO, label=["walk", "rest", "", None], group=["a", "a", "b", "b"])
    assert made.y_B.tolist() == [1, 0, -1, -1]
    assert made.present_BM.all()
    assert made.group_B is not None
    assert made.group_B.tolist() == ["a", "a", "b", "b"]
    window_set.check(made, TASK)


def test_api_a_single_channel_needs_no_axis_of_its_own() -> None:
    assert np.array_equal(read(acc=ACC, gyro=GYRO[:, 0]).x["gyro"], read(acc=ACC, gyro=GYRO).x["gyro"])


def test_api_an_image_is_given_as_rows_and_columns_and_a_vector_without_points() -> None:
    image = Modality(name="cam", kind="image", channels=3, height=4, width=6, rate_hz=1.0)
    vector = Modality(name="vec", kind="vector", channels=5, rate_hz=1.0)
    task = small_task((image, vector))
    pixels = np.arange(2 * 72, dtype=np.float32).reshape(2, 3, 4, 6)
    made = windows_of_arrays(task, {"cam": pixels, "vec": np.ones((2, 5))}, "d")
    assert np.array_equal(made.x["cam"].reshape(2, 3, 4, 6), pixels)
    assert made.x["vec"].shape == (2, 5, 1)


def test_api_a_modality_that_is_none_or_nan_is_missing_and_zeros() -> None:
    acc = ACC.copy()
    acc[1] = np.nan
    made = read(acc=acc, gyro=GYRO)
    assert made.present_BM.tolist() == [[True, True], [False, True], [True, True], [True, True]]
    assert not made.x["acc"][1].any()
    assert np.isnan(acc[1]).all(), "the caller's array is not changed"
    assert read(acc=ACC, gyro=None).present_BM[:, 1].tolist() == [False] * 4


def test_api_labels_of_further_targets_are_classes_by_name_or_numbers() -> None:
    targets = (Target(name="room", labels=("hall", "yard")), Target(name="speed", kind="regression"))
    task = small_task(sensors(acc=(3, 10)), targets=targets)
    made = windows_of_arrays(
        task, {"acc": ACC, "room": ["yard", None, "hall", "hall"], "speed": [1.5, None, 2, 0]}, "d"
    )
    assert np.array_equal(made.targets["room"], [1, np.nan, 0, 0], equal_nan=True)
    assert np.array_equal(made.targets["speed"], [1.5, np.nan, 2, 0], equal_nan=True)
    assert made.y_B.tolist() == [-1] * 4


SOME_NAN = ACC.copy()
SOME_NAN[2, 0, 3] = np.nan
WRONG = {
    "transposed": ({"acc": ACC.transpose(0, 2, 1), "gyro": GYRO}, r"acc: shape \(4, 20, 3\).*\.transpose\(0"),
    "samples": ({"acc": ACC[:, :, :7], "gyro": GYRO}, r"acc: shape \(4, 3, 7\); task 't' needs \(4, 3, 20\)"),
    "no modality": ({"acc": ACC}, "modality 'gyro' is missing.*or None"),
    "unknown": (
        {"acc": ACC, "gyro": GYRO, "lable": [0]},
        "has no 'lable'; arrays are acc, gyro, label, group",
    ),
    "lengths": ({"acc": ACC, "gyro": GYRO[:3]}, "different numbers of windows: acc 4, gyro 3"),
    "class": (
        {"acc": ACC, "gyro": GYRO, "label": ["walk", "fly", "", ""]},
        "'fly' is no class.*rest, walk, run",
    ),
    "index": ({"acc": ACC, "gyro": GYRO, "label": [0, 3, 1, 1]}, "label: 3 is no class; there are 3, from 0"),
    "one hot": ({"acc": ACC, "gyro": GYRO, "label": np.eye(4)}, r"label: shape \(4, 4\).*one value a window"),
    "some NaN": ({"acc": SOME_NAN, "gyro": GYRO}, "acc: window 2 has some NaN"),
    "infinite": ({"acc": ACC * np.inf, "gyro": GYRO}, "acc holds NaN or infinite values"),
    "nothing": ({"acc": None, "gyro": None}, "no modality at all"),
    "no numbers": ({"acc": [["a"]] * 4, "gyro": GYRO}, "acc: it holds other things than numbers"),
    "no array": ({"acc": 7, "gyro": GYRO}, "acc: give an array, not int"),
}


@pytest.mark.parametrize(("arrays", "words"), WRONG.values(), ids=WRONG)
def test_api_wrong_arrays_are_refused_by_device_and_array(arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(lichen.Misconfigured, match=f"^device 'd': .*{words}"):
        read(**arrays)


def test_api_a_fleet_is_a_folder_a_list_or_devices_by_name(tmp_path: Path) -> None:
    one = {"acc": ACC, "gyro": GYRO}
    assert fleet_of(TASK, tmp_path) == tmp_path
    listed = fleet_of(TASK, [one, read(**one)])
    assert isinstance(listed, dict)
    assert list(listed) == ["device-1", "device-2"]
    with pytest.raises(lichen.Misconfigured, match="'acc' is an array of one device"):
        fleet_of(TASK, one)  # type: ignore[arg-type]
    with pytest.raises(lichen.Misconfigured, match="there is no such folder"):
        fleet_of(TASK, tmp_path / "gone")
    with pytest.raises(lichen.Misconfigured, match=r"is no name.*write 'a-b'"):
        fleet_of(TASK, {"a b": one})
    with pytest.raises(lichen.Misconfigured, match="it is empty"):
        fleet_of(TASK, {})
    with pytest.raises(lichen.Misconfigured, match=r"device 'd': .*gone\.csv: there is no such file"):
        fleet_of(TASK, {"d": tmp_path / "gone.csv"})


def test_api_the_last_windows_of_each_class_are_held_back_from_learning() -> None:
    label = np.array([0, 0, 0, 0, 1, 1, 1, 1, -1])
    acc = np.arange(9)[:, None, None] * np.ones((9, 3, 20))
    one = windows_of_arrays(TASK, {"acc": acc, "gyro": None, "label": label}, "d")
    left, judges = held_back({"d": one}, 0.25)
    assert judges.x["acc"][:, 0, 0].tolist() == [3, 7]
    assert judges.group_B is not None
    assert judges.group_B.tolist() == ["d", "d"]
    assert left["d"].x["acc"][:, 0, 0].tolist() == [0, 1, 2, 4, 5, 6, 8]
    with pytest.raises(lichen.Misconfigured, match="between 0 and 1"):
        held_back({"d": one}, 1.0)
    with pytest.raises(lichen.Misconfigured, match="too few"):
        held_back({"d": window_set.select(one, [0, 4, 8])}, 0.25)


def test_api_rows_are_dicts_that_show_themselves_as_a_table() -> None:
    rows = lichen.Rows([{"round": 1, "accuracy": None}, {"round": 2, "accuracy": 0.98765, "why": "<b>"}])
    assert rows.column("accuracy") == [None, 0.98765]
    assert str(rows).splitlines() == ["round  accuracy  why", "    1               ", "    2    0.9877  <b>"]
    assert "&lt;b&gt;" in rows._repr_html_()
    assert "<b>" not in rows._repr_html_()
    with pytest.raises(KeyError, match="there are round, accuracy, why"):
        rows.column("acuracy")
    long = lichen.Rows({"n": n} for n in range(100))
    assert "(100 rows, the first and last 30)" in str(long)


def test_api_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = lichen.Rows([{"a": 1}, {"a": 2, "b": "x"}]).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].tolist() == [1, 2]
