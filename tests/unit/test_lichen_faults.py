"""Injected faults do what they say, where they say, and nothing else."""

import numpy as np
import pytest

from lichen import faults


def _recording(seconds: float = 256.0) -> faults.Recording:
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
    planned = faults.plan_faults(recorded, faults.FaultPlan(), 3)
    missing = sum(faults.share_of(planned, "outage", m, 2560.0) for m in "ab")
    assert missing == pytest.approx(0.45, abs=0.03)
    starts = [f.start_s for f in planned]
    assert len(starts) == len(set(starts)), "both modalities silent at once"
    hurt = faults.inject(recorded, planned, 3)
    for name in "ab":
        share = 1 - len(hurt[f"{name}/t"]) / len(recorded[f"{name}/t"])
        assert share == pytest.approx(faults.share_of(planned, "outage", name, 2560.0), abs=1e-3)


def test_the_bias_says_which_modality_fails() -> None:
    plan = faults.FaultPlan(outage_bias={"a": 0.0, "b": 1.0})
    assert {f.modality for f in faults.plan_faults(_recording(), plan, 1)} == {"b"}


def test_noise_has_the_named_signal_to_noise_ratio_and_only_there() -> None:
    recorded = _recording(1024.0)
    plan = faults.FaultPlan(outage_time=0.0, noise_time=0.5, noise_modality="a", snr_db=5.0)
    planned = faults.plan_faults(recorded, plan, 1)
    difference = faults.inject(recorded, planned, 1)["a/values"] - recorded["a/values"]
    noisy = np.zeros(len(recorded["a/t"]), bool)
    for f in planned:
        noisy |= (recorded["a/t"] >= f.start_s) & (recorded["a/t"] < f.end_s)
    assert noisy.mean() == pytest.approx(0.5, abs=0.03)
    assert not difference[~noisy].any()
    ratio = recorded["a/values"].var(axis=0).mean() / difference[noisy].var(axis=0).mean()
    assert 10 * np.log10(ratio) == pytest.approx(5.0, abs=0.3)


def test_stuck_repeats_one_value_for_the_whole_block() -> None:
    plan = faults.FaultPlan(outage_time=0.0, stuck_time=0.1, stuck_modality="b")
    recorded = _recording()
    planned = faults.plan_faults(recorded, plan, 1)
    (fault,) = planned
    hurt = faults.inject(recorded, planned, 1)
    inside = (hurt["b/t"] >= fault.start_s) & (hurt["b/t"] < fault.end_s)
    assert not np.ptp(hurt["b/values"][inside], axis=0).any()
    assert np.array_equal(hurt["a/values"], recorded["a/values"])


def test_the_original_is_untouched_and_the_seed_decides() -> None:
    recorded = _recording()
    before = recorded["a/values"].copy()
    plan = faults.FaultPlan(noise_time=0.3, noise_modality="a")
    first = faults.plan_faults(recorded, plan, 1)
    faults.inject(recorded, first, 1)
    assert np.array_equal(recorded["a/values"], before)
    assert first == faults.plan_faults(recorded, plan, 1)
    assert first != faults.plan_faults(recorded, plan, 2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (faults.FaultPlan(noise_time=0.1, noise_modality="c"), "names c; the recording has a, b"),
        (faults.FaultPlan(outage_time=0.7, stuck_time=0.5, stuck_modality="a"), "add up to 1.20"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_words(plan: faults.FaultPlan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        faults.plan_faults(_recording(), plan, 1)
