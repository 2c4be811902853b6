"""``lichen bench fedavg``: its devices, and that QQR without prototypes reaches what FedAvg does."""

import numpy as np
import pytest

from lichen_lab.benchmarks.suite import fedavg
from models.contract import WindowSet


def windows(count: int = 2000) -> WindowSet:
    rng = np.random.default_rng(3)
    x = {name: rng.normal(size=(count, 3, 4)).astype(np.float32) for name in ("accelerometer", "gyroscope")}
    ones = np.ones((count, 2))
    return WindowSet(x, ones.astype(np.bool_), ones.astype(np.float32), np.arange(count) % 6)


def test_bench_fedavg_devices_are_uneven_and_lack_modalities() -> None:
    devices = fedavg.uneven(windows(), 1)
    assert [len(held) for held in devices.values()] == [80, 160, 240, 320, 400, 500, 600, 700]
    lacking = np.concatenate([~held.present_BM.all(axis=1) for held in devices.values()])
    assert 0.2 < lacking.mean() < 0.4
    assert all(held.present_BM.any(axis=1).all() for held in devices.values())
    assert not all(held.x["gyroscope"][~held.present_BM[:, 1]].any() for held in devices.values())
    largest = [np.bincount(held.y_B, minlength=6).max() / len(held) for held in devices.values()]
    assert max(largest) > 2 / 6


def test_bench_fedavg_tests_are_in_the_scale_of_the_device_s_own_sensors() -> None:
    one = windows()
    devices, tests = fedavg.sensors_of_their_own(one, one, 2)
    assert devices.keys() == tests.keys()
    means = {}
    for name, held in devices.items():
        of_both = [its.x["gyroscope"].mean(axis=(0, 2)) for its in (held, tests[name])]
        assert np.abs(of_both[0] - of_both[1]).max() < 0.5
        means[name] = of_both[0]
    assert np.std([*means.values()], axis=0).min() > 0.1


@pytest.mark.long
@pytest.mark.data
def test_bench_fedavg_qqr_without_prototypes_reaches_what_fedavg_does() -> None:
    rows = {(row.method, row.metric): row.mean for row in fedavg.run(quick=True, say=lambda _: None)}
    assert rows["equal weights", "accuracy, %"] == rows["QQR without prototypes", "accuracy, %"]
    own = "accuracy of the devices' own predictions, %"
    assert rows["FedBN, strict", own] == rows["FedBN, with mean", own] > rows["norms shared", own]
