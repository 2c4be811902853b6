"""Decides whether a model passes its trial. Pure."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from edge_agent.deployment.trial_metrics import TrialMetrics, quantile_ms
from protocol.rollout import Trial

FEW_BATCHES: Final = 5
"""With fewer batches answered by both models, their times are not compared."""
LEAST_MS: Final = 10.0
"""Shorter times are rounded up to this: a busy board delays answers by as much, and more often those of the
model that runs first. Two models of half a millisecond had 95th percentiles of 12 and 0.8 ms on the same
windows."""
_TAIL: Final = 0.95


@dataclass(frozen=True)
class HealthVerdict:
    """``words``: why it failed, or the basis of the decision."""

    says: Literal["wait", "commit", "back"]
    words: str = ""


_WAIT: Final = HealthVerdict("wait")


def verdict(rules: Trial, measures: TrialMetrics, ran_s: float) -> HealthVerdict:
    """Decide from a trial's metrics.

    Too many errors end a trial at once; all else is judged when enough windows were answered, or at the
    deadline by those answered so far. A model without any input is not judged.

    Args:
        rules: limits of the trial.
        measures: its metrics.
        ran_s: time since the first window.
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
    """The measures for a report (``protocol.rollout.TrialReport``), without unknown ones."""
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
    """95th percentile of the model's times, divided by the former model's; NaN if there is none."""
    return _ratio(measures, _TAIL)


def _ratio(measures: TrialMetrics, share: float) -> float:
    ours, theirs = quantile_ms(measures.latency, share), quantile_ms(measures.latency_before, share)
    if math.isnan(ours) or math.isnan(theirs):
        return math.nan
    return max(LEAST_MS, ours) / max(LEAST_MS, theirs)


def drift(measures: TrialMetrics) -> float:
    """Total variation distance of the predicted classes, largest over the targets; NaN: unknown."""
    found = [
        0.5 * sum(abs(ours.get(k, 0) / total - theirs.get(k, 0) / total) for k in {*ours, *theirs})
        for name, ours in measures.said.items()
        if (theirs := measures.said_before.get(name)) and (total := sum(ours.values()))
    ]
    return max(found, default=math.nan)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _slow(rules: Trial, measures: TrialMetrics) -> str:
    """Slower in the tail and at the median: a few late answers may have another cause."""
    ratio = min(_ratio(measures, _TAIL), _ratio(measures, 0.5))
    if measures.batches < FEW_BATCHES or math.isnan(ratio) or ratio <= rules.max_latency_ratio:
        return ""
    ours, theirs = quantile_ms(measures.latency, _TAIL), quantile_ms(measures.latency_before, _TAIL)
    return (
        f"19 of 20 answers took up to {ours:.3g} ms, of the former model {theirs:.3g} ms (at most "
        f"{rules.max_latency_ratio:g} times as long; less than {LEAST_MS:g} ms counts as {LEAST_MS:g})"
    )


def _disagrees(rules: Trial, measures: TrialMetrics) -> str:
    share = _share(measures.agreed, measures.paired)
    if math.isnan(share) or share >= rules.min_agreement:
        return ""
    return (
        f"it agrees with the former model on {measures.agreed} of {measures.paired}: {share:.1%} "
        f"(at least {rules.min_agreement:.1%})"
    )


def _drifts(rules: Trial, measures: TrialMetrics) -> str:
    far = drift(measures)
    if math.isnan(far) or far <= rules.max_drift:
        return ""
    return (
        f"it predicts other classes than the former model: distance {far:.2f} (at most {rules.max_drift:g})"
    )


def _worse(rules: Trial, measures: TrialMetrics) -> str:
    if measures.labelled_paired < rules.min_labelled:
        return ""
    ours = measures.right_paired / measures.labelled_paired
    before = measures.right_before / measures.labelled_paired
    if before - ours <= rules.max_accuracy_drop + 1e-9:  # exactly the limit is allowed, despite rounding
        return ""
    return (
        f"accuracy {ours:.1%} on {measures.labelled_paired} labelled windows, of the former model "
        f"{before:.1%} (at most {100 * rules.max_accuracy_drop:g} points lower)"
    )
