"""Injected faults do what they say, where they say, and nothing else."""

import numpy as np
import pytest

from lichen_lab.simulation.data import sensor_faults


def _recording(seconds: float = 256.0) -> sensor_faults.Recording:
    t = np.arange(round(seconds * 50)) / 50
    rng = np.random.default_rng(0)
    return {
        "a/t": t,
        "a/values": rng.normal(3.0, 2.0, (len(t), 3)).astype(np.float32),
        "b/t": t.copy(),
        "b/values": rng.normal(0.0, 1.0, (len(t), 2)).astype(np.float32),
        "label/t": np.array([0.0]),
        "label/values": np.array([1]),
    }


def test_in_half_the_time_nine_of_ten_windows_lack_exactly_one_modality() -> None:
    recorded = _recording(2560.0)
    planned = sensor_faults.plan_faults(recorded, sensor_faults.FaultPlan(), 3)
    missing = sum(sensor_faults.share_of(planned, "outage", m, 2560.0) for m in "ab")
    assert missing == pytest.approx(0.45, abs=0.03)
    starts = [f.start_s for f in planned]
    assert len(starts) == len(set(starts)), "both modalities silent at once"
    hurt = sensor_faults.inject(recorded, planned, 3)
    for name in "ab":
        share = 1 - len(hurt[f"{name}/t"]) / len(recorded[f"{name}/t"])
        assert share == pytest.approx(sensor_faults.share_of(planned, "outage", name, 2560.0), abs=1e-3)


def test_the_bias_says_which_modality_fails() -> None:
    plan = sensor_faults.FaultPlan(outage_bias={"a": 0.0, "b": 1.0})
    assert {f.modality for f in sensor_faults.plan_faults(_recording(), plan, 1)} == {"b"}


def test_noise_has_the_named_signal_to_noise_ratio_and_only_there() -> None:
    recorded = _recording(1024.0)
    plan = sensor_faults.FaultPlan(outage_time=0.0, noise_time=0.5, noise_modality="a", snr_db=5.0)
    planned = sensor_faults.plan_faults(recorded, plan, 1)
    difference = sensor_faults.inject(recorded, planned, 1)["a/values"] - recorded["a/values"]
    noisy = np.zeros(len(recorded["a/t"]), bool)
    for f in planned:
        noisy |= (recorded["a/t"] >= f.start_s) & (recorded["a/t"] < f.end_s)
    assert noisy.mean() == pytest.approx(0.5, abs=0.03)
    assert not difference[~noisy].any()
    ratio = recorded["a/values"].var(axis=0).mean() / difference[noisy].var(axis=0).mean()
    assert 10 * np.log10(ratio) == pytest.approx(5.0, abs=0.3)


def test_stuck_repeats_one_value_for_the_whole_block() -> None:
    plan = sensor_faults.FaultPlan(outage_time=0.0, stuck_time=0.1, stuck_modality="b")
    recorded = _recording()
    planned = sensor_faults.plan_faults(recorded, plan, 1)
    (fault,) = planned
    hurt = sensor_faults.inject(recorded, planned, 1)
    inside = (hurt["b/t"] >= fault.start_s) & (hurt["b/t"] < fault.end_s)
    assert not np.ptp(hurt["b/values"][inside], axis=0).any()
    assert np.array_equal(hurt["a/values"], recorded["a/values"])


def test_the_original_is_untouched_and_the_seed_decides() -> None:
    recorded = _recording()
    before = recorded["a/values"].copy()
    plan = sensor_faults.FaultPlan(noise_time=0.3, noise_modality="a")
    first = sensor_faults.plan_faults(recorded, plan, 1)
    sensor_faults.inject(recorded, first, 1)
    assert np.array_equal(recorded["a/values"], before)
    assert first == sensor_faults.plan_faults(recorded, plan, 1)
    assert first != sensor_faults.plan_faults(recorded, plan, 2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (sensor_faults.FaultPlan(noise_time=0.1, noise_modality="c"), "names c; the recording has a, b"),
        (sensor_faults.FaultPlan(outage_time=0.7, stuck_time=0.5, stuck_modality="a"), "add up to 1.20"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_words(plan: sensor_faults.FaultPlan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sensor_faults.plan_faults(_recording(), plan, 1)


def _one_kind(
    kind: sensor_faults.FaultKind, amount: float
) -> tuple[sensor_faults.Recording, list[sensor_faults.SensorFault], np.ndarray]:
    recorded = _recording(512.0)
    planned = sensor_faults.plan_kind(recorded, kind, "a", amount, 1, from_s=51.2)
    inside = np.zeros(len(recorded["a/t"]), bool)
    for f in planned:
        inside |= (recorded["a/t"] >= f.start_s) & (recorded["a/t"] < f.end_s)
    return sensor_faults.inject(recorded, planned, 1), planned, inside


@pytest.mark.parametrize(
    ("kind", "amount"), [("noise", 10.0), ("stuck", 0.0), ("clip", 0.5), ("gain", 2.0), ("gaps", 0.4)]
)
def test_one_kind_hurts_one_modality_in_three_tenths_of_the_time_and_not_before(
    kind: sensor_faults.FaultKind, amount: float
) -> None:
    recorded = _recording(512.0)
    hurt, planned, inside = _one_kind(kind, amount)
    assert inside.mean() == pytest.approx(0.3 * 0.9, abs=0.03)
    assert min(f.start_s for f in planned) >= 51.2
    assert {(f.kind, f.modality, f.amount) for f in planned} == {(kind, "a", amount)}
    assert np.array_equal(hurt["b/values"], recorded["b/values"])
    here = np.isin(recorded["a/t"], hurt["a/t"])
    assert np.array_equal(hurt["a/values"][~inside[here]], recorded["a/values"][~inside])
    again = sensor_faults.inject(
        recorded, sensor_faults.plan_kind(recorded, kind, "a", amount, 1, from_s=51.2), 1
    )
    assert all(np.array_equal(hurt[key], again[key]) for key in hurt)
    assert planned != sensor_faults.plan_kind(recorded, kind, "a", amount, 2, from_s=51.2)


def test_gaps_leave_out_the_named_share_in_whole_bursts() -> None:
    recorded = _recording(512.0)
    hurt, _, inside = _one_kind("gaps", 0.4)
    gone = ~np.isin(recorded["a/t"], hurt["a/t"])
    assert not gone[~inside].any()
    assert gone[inside].mean() == pytest.approx(0.4, abs=0.06)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], gone.astype(int), [0]])))
    assert np.median(edges[1::2] - edges[::2]) >= 0.4 * 50 - 1


def test_a_clipped_sensor_has_one_full_scale_on_both_sides_and_all_axes() -> None:
    recorded = _recording(512.0)
    hurt, _, inside = _one_kind("clip", 0.5)
    rail = 0.5 * np.percentile(np.abs(recorded["a/values"]), 99)
    assert np.abs(hurt["a/values"][inside]).max() == pytest.approx(rail)
    free = inside & (np.abs(recorded["a/values"]) < rail).all(axis=1)
    assert np.array_equal(hurt["a/values"][free], recorded["a/values"][free])


def test_a_gain_grows_evenly_in_its_logarithm_and_is_right_again_afterwards() -> None:
    recorded = _recording(512.0)
    hurt, planned, inside = _one_kind("gain", 4.0)
    ratio = (hurt["a/values"] / recorded["a/values"])[:, 0]
    fault = planned[0]
    middle = int(np.searchsorted(recorded["a/t"], (fault.start_s + fault.end_s) / 2))
    assert ratio[middle] == pytest.approx(2.0, rel=0.01)
    assert ratio.max() == pytest.approx(4.0, rel=0.01)
    assert (ratio[~inside] == 1).all()


@pytest.mark.parametrize(
    ("kind", "modality", "amount", "words"),
    [
        ("gain", "c", 2.0, "no modality 'c'; the recording has a, b"),
        ("gain", "a", 0.0, "an amount of 0 means nothing"),
        ("gaps", "a", 1.5, "an amount of 1.5 means nothing"),
        ("clip", "a", -1.0, "an amount of -1 means nothing"),
    ],
)
def test_one_kind_that_cannot_be_is_refused_in_words(
    kind: sensor_faults.FaultKind, modality: str, amount: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        sensor_faults.plan_kind(_recording(), kind, modality, amount, 1)


def test_one_kind_needs_room() -> None:
    with pytest.raises(ValueError, match=r"no block of 25.6 s fits into the 8.78 s from 51.2 s on"):
        sensor_faults.plan_kind(_recording(60.0), "stuck", "a", 0.0, 1, from_s=51.2)
