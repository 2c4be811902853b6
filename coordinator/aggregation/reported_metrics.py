"""How good a version is where the coordinator has nothing to judge it on: the mean of what devices report.

A device judges with data of its own that never leaves it, so the figures are as honest as the devices are.
They are for people: no version is chosen or refused by them.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from models.registry import methods
from protocol.tasks.task import Task

_NAME: Final = 64
_METRICS: Final = 128

Told = tuple[int, Mapping[str, float]]
"""Samples behind an update, and its header's metrics."""


def reported_metric_names(task: Task) -> tuple[str, ...]:
    """The metrics of updates that make a version's (``MethodSpec.reported``); of most methods none."""
    spec = methods().get(task.method)
    return () if spec is None else spec.reported


def weighted_mean(names: Iterable[str], told: Iterable[Told]) -> dict[str, float]:
    """Of each metric, over the updates that tell it, by their samples; the order of updates is no matter.

    A metric that no update tells is left out, and so is one whose mean is no number.
    """
    updates, found = list(told), {}
    for name in names:
        have = [(samples, metrics[name]) for samples, metrics in updates if name in metrics and samples > 0]
        if have:
            weights = sum(samples for samples, _ in have)
            found[name] = sum(sorted(value * (samples / weights) for samples, value in have))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def sound(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that an announcement may carry: finite, not too many, with names that fit."""
    fit = [
        (name, float(value))
        for name, value in metrics.items()
        if 0 < len(name) <= _NAME and math.isfinite(value)
    ]
    return dict(fit[:_METRICS])
