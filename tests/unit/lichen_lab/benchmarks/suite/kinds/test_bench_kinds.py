"""Benchmarks of fleets that see images or hear sound: what they compare, and their data."""

import numpy as np
import pytest

from lichen_lab.benchmarks.suite.kinds import encoders, images, sound
from lichen_lab.benchmarks.suite.kinds.against_central import (
    CENTRAL,
    FLEET,
    MARGIN,
    TwoWays,
    compared,
    rows_of,
)
from lichen_lab.simulation.data.sets import fsdd
from protocol.tasks.kinds import KINDS
from protocol.tasks.rounds import Rounds
from tests.support.kinds import task_of_kinds, windows_of


def toy(seed: int) -> TwoWays:
    task = task_of_kinds(("vector",), config={"epochs": 1, "batch": 16, "lr": 0.1})
    task = task.model_copy(update={"rounds": Rounds(count=3), "seed": seed})
    devices = {f"d{i}": windows_of(task, i, count=48) for i in range(2)}
    return TwoWays("toy", "two devices", task, devices, windows_of(task, 9, count=30))


def test_a_fleet_and_central_training_are_scored_on_the_same_windows_and_paired_by_seed() -> None:
    scores = list(compared([lambda: toy(0), lambda: toy(1)], lambda _: None))
    rows = {(row.method, row.metric): row for row in rows_of(scores, "accuracy, %")}
    assert rows[CENTRAL, "accuracy, %"].mean > 60
    assert rows[FLEET, "accuracy, %"].n == 2
    margin = rows[FLEET, "accuracy, %"].mean - rows[CENTRAL, "accuracy, %"].mean
    assert rows[FLEET, MARGIN].mean == pytest.approx(margin)
    assert rows[FLEET, "bytes up, a device in a round"].mean > 100
    assert all(not one.of.devices for one in scores), "no case's windows stay in memory"


def test_pixels_lie_row_by_row_as_a_camera_gives_them() -> None:
    image_BHW = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    windows = images.windows_of(image_BHW, np.array([3, 4]))
    assert np.array_equal(windows.x["camera"].reshape(2, 28, 28), image_BHW.astype(np.float32))


def test_recordings_lie_in_the_middle_of_a_second_and_longer_ones_are_cut() -> None:
    short, long = np.full(100, 7, np.int16), np.full(9000, 5, np.int16)
    three = (np.array([1, 2]),) * 3
    x_BT = sound.windows_of(fsdd.Clips([short, long], *three)).x["microphone"][:, 0]
    assert np.flatnonzero(x_BT[0]).tolist() == list(range(3950, 4050))
    assert (x_BT[1] == 5).all()


@pytest.mark.data
def test_the_unseen_speaker_is_on_no_device_and_seeds_change_who_it_is() -> None:
    one, two = sound.fleet(0, each=4), sound.fleet(1, each=4)
    assert len(one.devices) == len(fsdd.SPEAKERS) - 1
    heard = {windows.x["microphone"].tobytes() for windows in one.devices.values()}
    assert one.test.x["microphone"].tobytes() not in heard
    assert not np.array_equal(one.test.x["microphone"], two.test.x["microphone"])


@pytest.mark.data
def test_every_device_has_its_own_uneven_classes_of_the_official_training_images() -> None:
    made = images.fleet("Fashion-MNIST", 0, tests=50)
    counts = [np.bincount(windows.y_B, minlength=10) for windows in made.devices.values()]
    assert [int(count.sum()) for count in counts] == [300] * 10
    assert min(int(count.max()) for count in counts) > 40
    assert len(made.test) == 50


def test_the_cost_of_every_encoder_is_measured_on_every_kind_that_it_takes() -> None:
    found = {
        (task.modalities[0].kind, task.encoder(task.modalities[0].name).kind)
        for _, _, task in encoders.tasks()
    }
    assert found == {(kind, encoder) for kind, rules in KINDS.items() for encoder in rules.encoders}


@pytest.mark.long
def test_the_cost_of_an_encoder_is_that_of_its_exported_model() -> None:
    rows = encoders.run(True, lambda _: None)
    by = {(row.dataset, row.metric): row.mean for row in rows}
    plain, residual = sorted({row.dataset for row in rows})
    for metric in ("parameters", "bytes of model.onnx"):
        assert 0 < by[plain, metric] < by[residual, metric]
    assert by[plain, "ms a window"] > 0
    assert by[plain, "bytes of model.onnx"] > 4 * by[plain, "parameters"]
