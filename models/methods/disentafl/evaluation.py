"""Evaluation of a global version on labelled windows: the supernet through one domain. Imports torch."""

from dataclasses import replace

import numpy as np

from models.contract import Blobs, Evaluation, FloatArray, WindowSet
from models.data.window_set import target as truth_of
from models.methods.disentafl.network.inference import RouteModel, predictions
from models.methods.disentafl.network.supernet import subnet
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of, domains_of, profile_of, route
from models.tensors import flatten
from models.training.evaluation import judge
from protocol.errors import Misconfigured
from protocol.output_names import output_names
from protocol.tasks.task import LABEL, Target, Task


def evaluated(task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
    """Accuracy and friends of ``label``; of each other target with labels, ``<target>/accuracy`` or ``/r2``.

    The domain is the one that the gate prefers for these windows. Where none of them has ``label``, the first
    classification that some have stands in for it.

    Raises:
        Misconfigured: no window is labelled, or there is no whole model to judge.
    """
    config = config_of(task)
    if config.aggregate == "kd" or config.last_layer == "private":
        option = 'aggregate = "avg"' if config.aggregate == "kd" else 'last_layer = "both" or "interpolated"'
        raise Misconfigured(
            f"task {task.name!r}: the coordinator has no trained last layer to evaluate, each device keeps "
            f"its own; config.{option} would give one"
        )
    made = predictions(RouteModel(task, subnet(task, _chosen(task, windows, state))), task, windows)
    main = _main(task, windows)
    found = judge(
        np.nan_to_num(truth_of(windows, main.name), nan=-1).astype(np.int64), made[output_names(main)[0]]
    )
    others = [_metric(task, target, windows, made) for target in task.objectives if target != main]
    return replace(found, metrics=found.metrics | {k: v for each in others for k, v in each.items()})


def _chosen(task: Task, windows: WindowSet, state: Blobs) -> Blobs:
    """All that a state reads and predicts, through the domain that its gate prefers of those it has."""
    profile, domains = profile_of(task, state), domains_of(state)
    if len(domains) > 1:
        scores_D = domain_gate.scores(task, flatten(state), profile, windows)
        domains = (max(domains, key=lambda d: float(scores_D[d])),)
    return {name: state[name] for name in route(task, profile, domains) if name in state}


def _main(task: Task, windows: WindowSet) -> Target:
    """``label``, or the first classification that has one."""
    for target in task.objectives:
        if target.kind == "classification" and not np.isnan(truth_of(windows, target.name)).all():
            return target
    return task.target(LABEL)


def _metric(task: Task, target: Target, windows: WindowSet, made: dict[str, FloatArray]) -> dict[str, float]:
    """One target's metric; none if no window is labelled for it."""
    guess = made[output_names(target)[0]]
    if target.modality is not None:
        m = task.modality_names.index(target.modality)
        there_B = windows.present_BM[:, m]
        true = windows.x[target.modality][there_B]
    else:
        there_B = ~np.isnan(truth_of(windows, target.name))
        true = truth_of(windows, target.name)[there_B]
    if not there_B.any():
        return {}
    if target.kind == "classification":
        return {f"{target.name}/accuracy": float((guess[there_B].argmax(axis=1) == true).mean())}
    error = np.square(guess[there_B].astype(np.float64) - true).sum()
    spread = np.square(true.astype(np.float64) - true.mean(axis=0, dtype=np.float64)).sum()
    return {f"{target.name}/r2": float(1 - error / max(spread, 1e-12))}
