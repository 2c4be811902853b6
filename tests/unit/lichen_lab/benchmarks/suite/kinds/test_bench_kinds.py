"""Benchmarks of fleets that see images or hear sound: what they compare, and their data."""

from dataclasses import replace

import numpy as np
import pytest

from lichen_lab.benchmarks.suite.kinds import av_mnist, encoders, images, sound
from lichen_lab.benchmarks.suite.kinds.against_central import (
    CENTRAL,
    FLEET,
    MARGIN,
    TwoScores,
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


def test_recordings_lie_in_the_middle_of_a_window_and_longer_ones_are_cut() -> None:
    short, long = np.full(100, 7, np.int16), np.full(9000, 5, np.int16)
    three = (np.array([1, 2]),) * 3
    x_BT = sound.windows_of(fsdd.Clips([short, long], *three)).x["microphone"][:, 0]
    assert np.flatnonzero(x_BT[0]).tolist() == list(range(3150, 3250))
    assert (x_BT[1] == 5).all()


@pytest.mark.data
def test_the_unseen_speaker_is_on_no_device_and_seeds_change_the_recordings_of_the_others() -> None:
    one, two = sound.fleet("theo", 0, each=4), sound.fleet("theo", 1, each=4)
    assert [*one.devices] == [name for name in fsdd.SPEAKERS if name != "theo"]
    clips = fsdd.clips()
    theo = sound.windows_of(clips).x["microphone"][clips.speaker == fsdd.SPEAKERS.index("theo")]
    for made in (one, two):
        assert _contents(made.test.x["microphone"]) == _contents(theo)
        assert all(
            _contents(theo).isdisjoint(_contents(its.x["microphone"])) for its in made.devices.values()
        )
    assert _contents(one.devices["george"].x["microphone"]) != _contents(
        two.devices["george"].x["microphone"]
    )


def _contents(x_BCT: np.ndarray) -> set[bytes]:
    return {x_CT.tobytes() for x_CT in x_BCT}


def test_the_speaker_on_whom_options_were_chosen_is_never_the_unseen_one_of_a_stored_figure() -> None:
    cases = [case.args for case in sound._cases(quick=False)]
    assert {unseen for unseen, _ in cases} == {*fsdd.SPEAKERS} - {sound.DEVELOPMENT}
    assert len(cases) == len({*cases}) == 15


def test_the_spread_over_speakers_is_of_their_means_over_seeds() -> None:
    made = [
        TwoScores(replace(toy(seed), dataset=f"FSDD, {who}", devices={}), fleet, 80.0, 100.0, 1.0)
        for seed in range(2)
        for who, fleet in (("theo", 70.0 + seed), ("lucas", 90.0 + seed))
    ]
    rows = {(row.dataset, row.metric): row for row in rows_of(sound.over_speakers(made), "accuracy, %")}
    means, every = (rows[f"FSDD, {name}", MARGIN] for name in (sound.SPEAKERS, sound.PAIRS))
    assert (means.n, means.mean) == (2, 0.5)
    assert means.sd == pytest.approx(np.std([-9.5, 10.5], ddof=1))
    assert (every.n, every.mean) == (4, 0.5)
    assert every.sd == pytest.approx(np.std([-10, -9, 10, 11], ddof=1))


@pytest.mark.data
def test_every_device_has_its_own_uneven_classes_of_the_official_training_images() -> None:
    made = images.fleet("Fashion-MNIST", 0, tests=50)
    counts = [np.bincount(windows.y_B, minlength=10) for windows in made.devices.values()]
    assert [int(count.sum()) for count in counts] == [300] * 10
    assert min(int(count.max()) for count in counts) > 40
    assert len(made.test) == 50


@pytest.mark.data
def test_pairs_are_of_one_digit_and_devices_lack_what_the_setting_says() -> None:
    made = av_mnist.fleet(0, each=4, tests=6)
    has = [np.unique(windows.present_BM, axis=0).tolist() for windows in made.devices.values()]
    assert has == [*([[True, False]],) * 3, *([[False, True]],) * 3, *([[True, True]],) * 4]
    assert not made.devices["d0"].x["microphone"].any()
    assert not made.devices["d3"].x["camera"].any()
    both, seen, heard = made.tests.values()
    assert np.array_equal(both.x["camera"], seen.x["camera"])
    assert np.array_equal(both.x["microphone"], heard.x["microphone"])
    digits = {clip.tobytes(): digit for clip, digit in zip(*_seconds(), strict=True)}
    assert [digits[x_CT.tobytes()] for x_CT in both.x["microphone"]] == both.y_B.tolist()


def _seconds() -> tuple[np.ndarray, np.ndarray]:
    """FSDD's recordings for tests as windows, and their digits."""
    clips = fsdd.clips()
    test = [i for i, index in enumerate(clips.index) if index < fsdd.TEST_RECORDINGS]
    audio = [clips.audio[i] for i in test]
    made = sound.windows_of(fsdd.Clips(audio, clips.digit[test], clips.speaker[test], clips.index[test]))
    return made.x["microphone"], made.y_B


def test_every_way_trains_on_the_same_pairs_and_only_the_filling_differs() -> None:
    task = av_mnist.task_of(3)
    windows = windows_of(task, 0, count=4)
    made = av_mnist.ways(av_mnist.Pairs(task, {"d0": windows, "d1": windows}, {}))
    assert made[FLEET][1] is made[av_mnist.ZEROS][1]
    assert len(made[CENTRAL][1][CENTRAL]) == 8
    assert made[CENTRAL][0] is made[FLEET][0]
    changed = {*made[av_mnist.ZEROS][0].config.items()} - {*made[FLEET][0].config.items()}
    assert changed == {("impute", "zero_feature"), ("pce_on_incomplete", False)}


def test_margins_of_pairs_are_paired_by_seed() -> None:
    found = {
        (FLEET, "both"): [90.0, 80.0],
        (av_mnist.ZEROS, "both"): [70.0, 66.0],
        (CENTRAL, "both"): [91.0, 85.0],
    }
    rows = {(row.method, row.metric): row for row in av_mnist.rows_of(found, 1.0)}
    assert rows[FLEET, MARGIN].mean == -3
    assert rows[FLEET, av_mnist.ABOVE_ZEROS].mean == 17
    assert rows[CENTRAL, av_mnist.ACCURACY].mean == 88


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
