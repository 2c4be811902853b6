"""Metrics of a version where the coordinator has no evaluation data: the mean of what devices report.

Devices evaluate on data that never leaves them, so the figures are as honest as the devices are. They are for
people: no version is selected or refused by them.
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
    """The metrics of updates that make a version's (``MethodSpec.reported``); of most methods none.

    With ``[privacy]`` none: a mean without noise would be published beside the version.
    """
    spec = methods().get(task.method)
    return () if spec is None or task.privacy is not None else spec.reported


def weighted_mean(names: Iterable[str], told: Iterable[Told]) -> dict[str, float]:
    """The mean of each metric over the updates that report it, weighted by samples; independent of order.

    A metric that no update reports is left out, and so is one whose mean is not a number.
    """
    updates, found = list(told), {}
    for name in names:
        have = [(samples, metrics[name]) for samples, metrics in updates if name in metrics and samples > 0]
        if have:
            weights = sum(samples for samples, _ in have)
            found[name] = sum(sorted(value * (samples / weights) for samples, value in have))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def sound(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that an announcement may carry: finite, not too many, with valid names."""
    fit = [
        (name, float(value))
        for name, value in metrics.items()
        if 0 < len(name) <= _NAME and math.isfinite(value)
    ]
    return dict(fit[:_METRICS])
