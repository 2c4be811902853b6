"""Scores of a device's predictions on its test windows, 0 to 100 for every kind of target."""

from collections.abc import Mapping

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from models.contract import FloatArray
from models.data import window_set
from protocol.tasks.task import Target


def score(fleet: TargetFleet, member: TargetDevice, outputs: Mapping[str, FloatArray]) -> dict[str, float]:
    """Scores by target of the device's profile, in its order.

    Args:
        fleet: its judges classify generated windows.
        member: the device whose test windows were predicted.
        outputs: target -> classification: (B, K) logits or probabilities; regression: (B,) in the target's
            unit; generation: (B, C, T) in the modality's unit.

    Returns:
        Classification: accuracy in %. Regression: 100 times R^2, 0 if that is negative. Generation: share of
        the windows in which the fleet's judge recognises the right class, in %; without a judge, 100 times
        R^2 as a regression.

    Raises:
        KeyError: a target of the profile has no output.
        ValueError: an output's shape does not fit, or no test window has the target.
    """
    targets = (fleet.task.target(name) for name in member.profile.targets)
    return {t.name: _one(fleet, member, t, outputs[t.name]) for t in targets}


def _one(fleet: TargetFleet, member: TargetDevice, target: Target, output: FloatArray) -> float:
    if len(output) != len(member.test):
        raise ValueError(f"{member.name}, {target.name}: {len(output)} outputs of {len(member.test)} windows")
    if target.kind == "classification":
        truth_B = window_set.target(member.test, target.name)
        labelled_B = ~np.isnan(truth_B)
        if not labelled_B.any() or output.shape[1:] != (len(target.labels),):
            raise ValueError(
                f"{member.name}, {target.name}: output of shape {output.shape} for {len(target.labels)} "
                f"classes and {labelled_B.sum()} labelled windows"
            )
        return 100 * float((output.argmax(axis=1) == truth_B)[labelled_B].mean())
    judge = fleet.judges.get(target.name)
    if target.kind == "regression" or judge is None:
        return 100 * max(0.0, _explained(member, target, output))
    return 100 * float((judge(output) == member.truth[target.name]).mean())


def _explained(member: TargetDevice, target: Target, output: FloatArray) -> float:
    """R^2 over labelled windows, all values: 1 - squared error / squared distance from the truth's mean."""
    if target.modality is None:
        truth = window_set.target(member.test, target.name)
    else:
        truth = member.test.x[target.modality]
    if output.shape != truth.shape:
        raise ValueError(f"{member.name}, {target.name}: output of shape {output.shape}, not {truth.shape}")
    known = ~np.isnan(truth)
    error, spread = (truth - output)[known], (truth - np.nanmean(truth, axis=0))[known]
    total = float(np.square(spread, dtype=np.float64).sum())
    if not total:
        raise ValueError(f"{member.name}, {target.name}: the truth is the same in all test windows")
    explained = 1 - float(np.square(error, dtype=np.float64).sum()) / total
    return explained if np.isfinite(explained) else -np.inf
