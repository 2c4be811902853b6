"""What a model on trial shows, and what follows from it."""

import numpy as np
import pytest

from edge_agent.deployment.health import drift, figures, latency_ratio, verdict
from edge_agent.deployment.trial_metrics import TrialMetrics, added, bucket, quantile_ms
from edge_agent.inference.onnx_models.observation import TAILS, BatchObservation
from protocol.bundle import BundleManifest, unpack
from protocol.rollout import Trial
from protocol.tasks.task import Target
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task
from tests.support.coordinator.trial_runner import classes

TASK = toy_task()
MANIFEST: BundleManifest = unpack(bundle(TASK))[0]
RULES = Trial(windows=20)


def seen(*said, before=None, truth=None, error="", latency_s=0.002, before_latency_s=0.002, **more):
    return BatchObservation(
        "a" * 64,
        MANIFEST,
        max(1, len(said)),
        latency_s,
        error=error,
        answers={} if error else classes(*said),
        y_B=np.full(len(said), -1) if truth is None else np.array(truth),
        before=None if before is None else classes(*before),
        before_latency_s=None if before is None else before_latency_s,
        **more,
    )


def after(*batches):
    measures = TrialMetrics()
    for one in batches:
        measures = added(measures, one)
    return TrialMetrics.model_validate_json(measures.model_dump_json())  # as it comes back from the disk


def test_a_model_that_answers_enough_windows_stays():
    few = after(*[seen(0, 1, before=(0, 1))] * 9)
    assert verdict(RULES, few, 10.0).says == "wait"
    enough = added(few, seen(0, 1, before=(0, 1)))
    assert verdict(RULES, enough, 10.0).says == "commit"
    told = figures(enough)
    assert (told["windows"], told["agreement"], told["drift"], told["errors"]) == (20, 1, 0, 0)
    assert "accuracy" not in told, "what no label came for is not reported"


def test_one_error_too_many_ends_it_at_once():
    found = verdict(RULES, after(seen(0, 1), seen(0, 1, error="it died")), 0.1)
    assert found.says == "back"
    assert "no answer to 2 of 4 (at most 0)" in found.words
    allowed = Trial(windows=20, max_errors=2)
    assert verdict(allowed, after(seen(0, 1, error="it died")), 0.1).says == "wait"


def test_answers_that_are_no_numbers_are_errors():
    broken = classes(0, 1, 2)
    broken["label"][1, 0] = np.nan
    one = BatchObservation("a" * 64, MANIFEST, 3, 0.001, answers=broken, y_B=np.full(3, -1))
    assert (added(TrialMetrics(), one).windows, added(TrialMetrics(), one).errors) == (2, 1)
    flat = {"label": np.zeros(3, np.float32)}
    for odd in (classes(0), {}, flat, classes(0, 1, 2, classes=7)):
        none = BatchObservation(
            "a" * 64, MANIFEST, 3, 0.001, answers=odd, y_B=np.full(3, -1), before=classes(0, 1, 2)
        )
        assert (added(TrialMetrics(), none).windows, added(TrialMetrics(), none).errors) == (0, 3)


def test_late_it_is_judged_by_those_that_came_and_never_by_none():
    assert verdict(RULES, after(seen(0)), RULES.deadline_s).says == "commit"
    assert verdict(RULES, TrialMetrics(), 10 * RULES.deadline_s).says == "wait"
    worse = [seen(0, 1, before=(0, 2), truth=(0, 2)), seen(0, 1, before=(0, 2), truth=(0, 2))]
    strict = Trial(windows=20, min_labelled=4)
    assert verdict(strict, after(*worse), strict.deadline_s).says == "back"


def test_a_batch_that_neither_model_answers_is_no_sign_of_a_bad_one():
    neither = seen(0, 1, error="numbers", before_error="numbers")
    assert after(neither) == TrialMetrics()
    only_it = seen(0, 1, error="numbers")
    assert after(only_it).errors == 2, "the one before was not asked, or answered"
    assert after(seen(0, before_error="it died")).windows == 1


def test_late_and_with_no_answer_at_all_it_goes_however_many_errors_are_allowed():
    lenient = Trial(windows=20, max_errors=1000, deadline_s=60)
    silent = after(*[seen(0, error="it died")] * 9)
    assert verdict(lenient, silent, 59).says == "wait"
    found = verdict(lenient, silent, 60)
    assert (found.says, found.words) == ("back", "no answer to any of 9 in 60 s")


def test_another_opinion_than_the_model_before_ends_it_where_agreement_is_asked_for():
    apart = after(*[seen(0, 1, before=(0, 2))] * 10)
    assert verdict(RULES, apart, 1.0).says == "commit", "a new model may know better"
    found = verdict(Trial(windows=20, min_agreement=0.8), apart, 1.0)
    assert found.says == "back"
    assert "on 10 of 20: 50.0% (at least 80.0%)" in found.words
    assert verdict(Trial(windows=20, min_agreement=0.8), after(*[seen(0, 1)] * 10), 1.0).says == "commit"


def test_other_classes_than_the_model_before_end_it_where_drift_is_asked_for():
    one_class = after(*[seen(0, 0, before=(0, 1))] * 10)
    assert drift(one_class) == pytest.approx(0.5)
    found = verdict(Trial(windows=20, max_drift=0.4), one_class, 1.0)
    assert "other classes than the former model: distance 0.50 (at most 0.4)" in found.words
    exchanged = after(*[seen(0, 1, before=(1, 0))] * 10)
    assert drift(exchanged) == 0, "the same classes as often, on other windows: that is disagreement"
    assert figures(exchanged)["agreement"] == 0


def test_a_model_that_is_slower_than_allowed_goes_and_few_milliseconds_do_not_count():
    slow = after(*[seen(0, 1, before=(0, 1), latency_s=1.0, before_latency_s=0.02)] * 10)
    assert latency_ratio(slow) == pytest.approx(50, rel=0.11)
    assert "(at most 5 times as long" in verdict(RULES, slow, 1.0).words
    quick = after(*[seen(0, 1, before=(0, 1), latency_s=0.009, before_latency_s=0.00002)] * 10)
    assert latency_ratio(quick) == 1
    late = [seen(0, 1, before=(0, 1), latency_s=at, before_latency_s=0.01) for at in [0.011] * 8 + [9.0] * 2]
    assert latency_ratio(after(*late)) > 100
    assert verdict(RULES, after(*late), 1.0).says == "commit", "a few late answers may be anybody's fault"
    alone = after(*[seen(0, 1, latency_s=9.0)] * 10)
    assert verdict(RULES, alone, 1.0).says == "commit", "there is nothing to compare with"
    once = after(seen(*[0] * 20, before=[0] * 20, latency_s=1.0, before_latency_s=0.02))
    assert verdict(RULES, once, 1.0).says == "commit", "one batch tells nothing of times"


def test_accuracy_is_compared_on_the_same_windows_where_enough_labels_came():
    worse = after(*[seen(0, 1, before=(0, 2), truth=(0, 2))] * 10)
    found = verdict(RULES, worse, 1.0)
    assert found.says == "back"
    assert "accuracy 50.0% on 20 labelled windows, of the former model 100.0%" in found.words
    told = figures(worse)
    assert (told["accuracy"], told["accuracy_before"], told["labelled"]) == (0.5, 1.0, 20)
    few = after(*[seen(0, 1, before=(0, 2), truth=(-1, -1))] * 10, seen(1, before=(2,), truth=(2,)))
    assert verdict(RULES, few, 1.0).says == "commit"
    just = after(*[seen(*[0] * 10, before=[0] * 10, truth=[0] * 9 + [1])] * 2)
    assert verdict(RULES, just, 1.0).says == "commit"
    drop = Trial(windows=20, max_accuracy_drop=0.5)
    assert verdict(drop, worse, 1.0).says == "commit", "as much lower as allowed"
    alone = after(*[seen(0, 1, truth=(1, 1))] * 10)
    assert figures(alone)["accuracy"] == 0.5
    assert verdict(RULES, alone, 1.0).says == "commit"


def test_what_is_just_allowed_is_allowed():
    """Each rule names the last value that passes."""
    same = [seen(0, 1, before=(0, 1))] * 10
    with_errors = after(*same, seen(0, 1, error="it died"))
    assert verdict(Trial(windows=20, max_errors=2), with_errors, 1.0).says == "commit"
    assert verdict(Trial(windows=20, max_errors=1), with_errors, 1.0).says == "back"
    half = after(*[seen(0, 1, before=(0, 2))] * 10)
    assert verdict(Trial(windows=20, min_agreement=0.5), half, 1.0).says == "commit"
    one_class = after(*[seen(0, 0, before=(0, 1))] * 10)
    assert verdict(Trial(windows=20, max_drift=0.5), one_class, 1.0).says == "commit"
    assert verdict(Trial(windows=20, max_latency_ratio=1.0), after(*same), 1.0).says == "commit"


def test_labels_and_batches_tell_something_from_the_number_on_that_is_asked_for():
    worse = after(*[seen(0, 1, before=(0, 2), truth=(0, 2))] * 10)
    assert verdict(Trial(windows=20, min_labelled=20), worse, 1.0).says == "back"
    assert verdict(Trial(windows=20, min_labelled=21), worse, 1.0).says == "commit"
    slow = seen(0, 1, 2, 0, before=(0, 1, 2, 0), latency_s=1.0, before_latency_s=0.02)
    assert verdict(Trial(windows=16), after(*[slow] * 4), 1.0).says == "commit"
    assert verdict(Trial(windows=20), after(*[slow] * 5), 1.0).says == "back"


def test_an_answer_of_the_model_before_that_has_no_time_counts_for_all_but_the_time():
    untimed = after(*[seen(0, 1, before=(0, 2), before_latency_s=None)] * 10)
    assert (untimed.paired, untimed.latency_before) == (20, {})
    assert verdict(RULES, untimed, 1.0).says == "commit"
    assert "latency_ratio" not in figures(untimed)


def test_numbers_and_windows_agree_within_a_tenth_of_their_scale():
    targets = (
        Target(name="speed", kind="regression", scale=10.0),
        Target(name="made", kind="generation", modality="acc"),
    )
    wide = TASK.modalities[0].model_copy(update={"scale": 2.0})
    manifest = MANIFEST.model_copy(update={"targets": targets, "generated": (wide,)})

    def both(speeds, shift):
        made = np.zeros((2, 3, 4), np.float32)
        return BatchObservation(
            "a" * 64,
            manifest,
            2,
            0.001,
            answers={"speed": np.array([1.0, 2.0], np.float32), "made": made},
            y_B=np.full(2, -1),
            before={"speed": np.array(speeds, np.float32), "made": made + np.float32(shift)},
        )

    assert added(TrialMetrics(), both([1.5, 2.9], 0.1)).agreed == 2
    assert added(TrialMetrics(), both([2.5, 2.0], 0.1)).agreed == 1
    assert added(TrialMetrics(), both([1.0, 2.0], 0.3)).agreed == 0


def test_answers_on_graphs_agree_when_the_first_is_the_same():
    one = BatchObservation(
        "a" * 64,
        MANIFEST,
        2,
        0.001,
        answers={TAILS: np.array([[1, 2], [3, 4]])},
        before={TAILS: np.array([[1, 9], [4, 3]])},
        before_latency_s=0.001,
    )
    measures = after(one)
    assert (measures.windows, measures.paired, measures.agreed) == (2, 2, 1)
    assert verdict(Trial(windows=2, min_agreement=0.6), measures, 1.0).says == "back"


def test_a_model_with_other_targets_is_compared_on_what_both_predict():
    other = BatchObservation(
        "a" * 64,
        MANIFEST,
        2,
        0.001,
        answers=classes(0, 1),
        y_B=np.full(2, -1),
        before={"speed": np.zeros(2, np.float32)},
        before_latency_s=0.001,
    )
    measures = after(other)
    assert (measures.windows, measures.batches, measures.paired) == (2, 1, 0)
    assert "agreement" not in figures(measures)


def test_answers_on_graphs_and_on_windows_have_nothing_in_common():
    one = BatchObservation(
        "a" * 64,
        MANIFEST,
        2,
        0.001,
        answers=classes(0, 1),
        y_B=np.full(2, -1),
        before={TAILS: np.array([[1, 9], [4, 3]])},
    )
    assert (after(one).windows, after(one).paired) == (2, 0)


def test_times_are_told_within_a_tenth_however_large():
    for latency in (1e-7, 1e-5, 0.0004, 0.02, 3.0, 100.0):
        told = quantile_ms({bucket(latency): 1}, 0.95) / 1000
        assert max(latency, 1e-5) <= told * 1.0001
        assert told <= 1.1 * max(latency, 1e-5) * 1.0001
    assert bucket(1e9) == bucket(1e12), "bounded"
    assert quantile_ms({10: 95, 50: 5}, 0.95) == quantile_ms({10: 1}, 0.5)
    assert np.isnan(quantile_ms({}, 0.5))
