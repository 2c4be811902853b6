"""What the quality benchmark counts: the truth of windows, and streams joined back together."""

import numpy as np
import pytest

from lichen_lab.benchmarks import registry
from lichen_lab.benchmarks.suite import quality_indicator
from lichen_lab.benchmarks.support import quality_streams as streams
from lichen_lab.benchmarks.support import quality_truth as truth
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sensor_faults import Recording, SensorFault, inject
from lichen_lab.simulation.data.sets import uci_har
from protocol.errors import Misconfigured
from tests.support.agent.data import turning


def recorded(seconds: float = 160.0, seed: int = 0) -> Recording:
    return streams.joined([np.concatenate(turning(seconds, 50, seed), axis=1).astype(np.float32)])


def counted(fault: SensorFault) -> dict[str, truth.TruthCount]:
    clean = recorded()
    counts = {name: truth.TruthCount() for name in streams.NAMES}
    before = truth.clean(streams.TASK, clean, {name: truth.TruthCount() for name in streams.NAMES})
    truth.with_faults(streams.TASK, before, inject(clean, [fault], 0), [fault], counts)
    return counts


def test_a_count_says_recall_precision_and_false_alarms() -> None:
    count = truth.TruthCount()
    hurt_B, sound_B = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0], bool), np.array([0] * 4 + [1] * 4 + [0], bool)
    found_B = np.array([1, 1, 1, 0, 1, 0, 0, 0, 1], bool)
    reason_BR = np.zeros((9, len(truth.REASONS)), bool)
    reason_BR[4, 0] = reason_BR[0, 0] = True
    count.add(hurt_B, sound_B, found_B, reason_BR)
    assert (count.recall, count.precision, count.false_alarms) == (75, 75, 25)
    assert count.f1 == pytest.approx(75)
    assert count.reasons["gaps"] == 1, "only where nothing is wrong"


def test_nothing_hurt_and_nothing_found_have_no_rates() -> None:
    count = truth.TruthCount()
    assert (count.recall, count.precision, count.false_alarms, count.f1) == (None, None, None, 0)


def test_edges_of_a_fault_are_neither_hurt_nor_sound() -> None:
    counts = counted(SensorFault("stuck", "gyroscope", 64.0, 89.6))
    # 20 strides of 1.28 s: 19 windows lie within, 2 half in it; 2 x 2 others touch it.
    assert counts["gyroscope"].hurt == 21
    assert counts["gyroscope"].hurt + counts["gyroscope"].sound == len(range(124))
    assert counts["gyroscope"].hurt_found >= 19
    assert counts["accelerometer"].hurt == 0
    assert counts["accelerometer"].sound == 124


def test_of_a_drift_the_second_half_counts() -> None:
    whole = counted(SensorFault("stuck", "accelerometer", 64.0, 140.8))["accelerometer"].hurt
    drift = counted(SensorFault("gain", "accelerometer", 64.0, 140.8, amount=0.5))["accelerometer"]
    assert drift.hurt == pytest.approx(whole / 2, abs=2)
    assert drift.recall == pytest.approx(100)
    assert drift.hurt + drift.sound < 100, "the first half is neither"


def test_windows_that_clipping_did_not_touch_are_sound() -> None:
    counts = counted(SensorFault("clip", "accelerometer", 64.0, 89.6, amount=5.0))["accelerometer"]
    assert (counts.hurt, counts.sound) == (0, 124)


def test_a_modality_that_is_masked_for_its_gaps_is_found() -> None:
    counts = counted(SensorFault("outage", "accelerometer", 64.0, 89.6))["accelerometer"]
    assert counts.hurt_found == counts.hurt == 21


def test_joined_pieces_make_no_gaps() -> None:
    pieces = [np.concatenate(turning(20, 50, seed), axis=1).astype(np.float32) for seed in range(4)]
    counts = {name: truth.TruthCount() for name in streams.NAMES}
    truth.clean(streams.TASK, streams.joined([*pieces, pieces[0][:100]]), counts)
    for count in counts.values():
        assert count.sound == 4 * (1000 // 64 - 1)
        assert count.reasons["gaps"] == 0


def test_windows_joined_back_are_the_stream() -> None:
    whole = np.random.default_rng(0).normal(size=(64 * 9, 6)).astype(np.float32)
    first = [whole[at : at + 128].T for at in range(0, 64 * 4, 64)]
    second = [whole[at : at + 128].T for at in range(64 * 6, 64 * 8, 64)]
    runs = streams.runs_of(np.stack(first + second))
    assert [len(run) for run in runs] == [64 * 5, 64 * 3]
    assert np.array_equal(runs[0], whole[: 64 * 5])
    assert np.array_equal(runs[1], whole[64 * 6 :])


def test_the_benchmark_says_what_it_found_for_each_kind_and_modality(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in quality_indicator.CASES if case.words in {"stuck", "white noise, 0 dB"}]
    monkeypatch.setattr(quality_indicator, "CASES", tuple(cases))
    monkeypatch.setattr(
        quality_indicator, "LOADERS", {"made": lambda: [recorded(160.0, seed) for seed in range(2)]}
    )
    said: list[str] = []
    rows = quality_indicator.run(False, said.append)
    figures = {(row.method, row.setting, row.metric): row for row in rows}
    for name in streams.NAMES:
        assert figures[name, "no fault", "false alarms, %"].mean < 5
        for case in cases:
            recall = figures[name, case.words, "recall, %"]
            assert recall.mean > 80
            assert recall.n == 5
            assert figures[name, case.words, "precision, %"].mean > 80
    assert figures["both", "one window at a time", "CPU us a window"].mean > 0
    assert any("stuck" in line for line in said)


def test_the_benchmark_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> list[Recording]:
        raise Misconfigured("data set x is not here")

    monkeypatch.setattr(quality_indicator, "LOADERS", {"x": absent})
    with pytest.raises(Misconfigured, match="data set x is not here"):
        quality_indicator.run(True, lambda _: None)


def test_it_is_registered() -> None:
    assert registry.bench("quality") is quality_indicator.BENCH
    assert not [name for name in registry.names() if name.startswith("_")]


@pytest.mark.data
def test_real_windows_of_uci_har_are_joined_into_people() -> None:
    try:
        locations.folder(uci_har.FOLDER)
    except Misconfigured as error:
        pytest.skip(f"SKIPPED: {error}")
    people = streams.uci_har_people(uci_har.load("test"))
    assert len(people) == len(uci_har.TEST_PEOPLE)
    counts = {name: truth.TruthCount() for name in streams.NAMES}
    for one in people:
        truth.clean(streams.TASK, one, counts)
    # Every official window is cut again, and no other.
    assert counts["accelerometer"].sound == 2947
    assert all((count.false_alarms or 0) < 2 for count in counts.values())
