"""Is a model on trial good enough to stay? Pure."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from edge_agent.deployment.trial_metrics import TrialMetrics, quantile_ms
from protocol.rollout import Trial

FEW_BATCHES: Final = 5
"""Fewer that both models answered tell nothing of their times."""
LEAST_MS: Final = 10.0
"""Shorter times count as this: a busy board is late by as much, and more often with what is asked first. Of
two models of half a millisecond, 95th percentiles of 12 and 0.8 ms were measured on the same windows."""
_TAIL: Final = 0.95


@dataclass(frozen=True)
class HealthVerdict:
    """``words``: why it goes, or on what it was judged."""

    says: Literal["wait", "commit", "back"]
    words: str = ""


_WAIT: Final = HealthVerdict("wait")


def verdict(rules: Trial, measures: TrialMetrics, ran_s: float) -> HealthVerdict:
    """What follows from what was measured.

    Too many errors end a trial at once; all else is judged when enough windows were answered, or in the end
    by those that were. A model of which nothing was asked is not judged.

    Args:
        rules: what it must show.
        measures: what it showed.
        ran_s: for how long it has run since the first window.
    """
    if measures.errors > rules.max_errors:
        asked = measures.errors + measures.windows
        return HealthVerdict(
            "back", f"no answer to {measures.errors} of {asked} (at most {rules.max_errors})"
        )
    late = ran_s >= rules.deadline_s
    if late and measures.errors and not measures.windows:
        return HealthVerdict("back", f"no answer to any of {measures.errors} in {rules.deadline_s:g} s")
    if measures.windows < rules.windows and not (late and measures.windows):
        return _WAIT
    for why in (_slow(rules, measures), _disagrees(rules, measures), _drifts(rules, measures)):
        if why:
            return HealthVerdict("back", why)
    why = _worse(rules, measures)
    return HealthVerdict("back", why) if why else HealthVerdict("commit", f"{measures.windows} answers")


def figures(measures: TrialMetrics) -> dict[str, float]:
    """The measures for a report (``protocol.rollout.TrialReport``): those that could be taken."""
    paired = measures.labelled_paired > 0
    labelled = measures.labelled_paired if paired else measures.labelled
    right = measures.right_paired if paired else measures.right
    found = {
        "windows": float(measures.windows),
        "errors": float(measures.errors),
        "latency_p50_ms": quantile_ms(measures.latency, 0.5),
        "latency_p95_ms": quantile_ms(measures.latency, _TAIL),
        "latency_ratio": latency_ratio(measures),
        "agreement": _share(measures.agreed, measures.paired),
        "drift": drift(measures),
        "accuracy": _share(right, labelled),
        "accuracy_before": _share(measures.right_before, measures.labelled_paired),
        "labelled": float(labelled),
    }
    return {name: round(value, 4) for name, value in found.items() if math.isfinite(value)}


def latency_ratio(measures: TrialMetrics) -> float:
    """95th percentiles: the model's over that of the one before; NaN where there is none."""
    return _ratio(measures, _TAIL)


def _ratio(measures: TrialMetrics, share: float) -> float:
    ours, theirs = quantile_ms(measures.latency, share), quantile_ms(measures.latency_before, share)
    if math.isnan(ours) or math.isnan(theirs):
        return math.nan
    return max(LEAST_MS, ours) / max(LEAST_MS, theirs)


def drift(measures: TrialMetrics) -> float:
    """Total variation distance of the predicted classes, of the target where it is largest; NaN: unknown."""
    found = [
        0.5 * sum(abs(ours.get(k, 0) / total - theirs.get(k, 0) / total) for k in {*ours, *theirs})
        for name, ours in measures.said.items()
        if (theirs := measures.said_before.get(name)) and (total := sum(ours.values()))
    ]
    return max(found, default=math.nan)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _slow(rules: Trial, measures: TrialMetrics) -> str:
    """In the tail and at the median: a few late answers may be anybody's fault."""
    ratio = min(_ratio(measures, _TAIL), _ratio(measures, 0.5))
    if measures.batches < FEW_BATCHES or math.isnan(ratio) or ratio <= rules.max_latency_ratio:
        return ""
    ours, theirs = quantile_ms(measures.latency, _TAIL), quantile_ms(measures.latency_before, _TAIL)
    return (
        f"19 of 20 answers took up to {ours:.3g} ms, of the model before {theirs:.3g} ms (at most "
        f"{rules.max_latency_ratio:g} times as long, where less than {LEAST_MS:g} ms count as {LEAST_MS:g})"
    )


def _disagrees(rules: Trial, measures: TrialMetrics) -> str:
    share = _share(measures.agreed, measures.paired)
    if math.isnan(share) or share >= rules.min_agreement:
        return ""
    return (
        f"it says what the model before says on {measures.agreed} of {measures.paired}: {share:.1%} "
        f"(at least {rules.min_agreement:.1%})"
    )


def _drifts(rules: Trial, measures: TrialMetrics) -> str:
    far = drift(measures)
    if math.isnan(far) or far <= rules.max_drift:
        return ""
    return (
        f"it predicts other classes than the model before: distance {far:.2f} (at most {rules.max_drift:g})"
    )


def _worse(rules: Trial, measures: TrialMetrics) -> str:
    if measures.labelled_paired < rules.min_labelled:
        return ""
    ours = measures.right_paired / measures.labelled_paired
    before = measures.right_before / measures.labelled_paired
    if before - ours <= rules.max_accuracy_drop + 1e-9:  # a drop of just so much is allowed, in floats too
        return ""
    return (
        f"accuracy {ours:.1%} on {measures.labelled_paired} labelled windows, of the model before "
        f"{before:.1%} (at most {100 * rules.max_accuracy_drop:g} points lower)"
    )
