"""The coordinator's task (``task.toml``), checked."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.privacy.promise import require_privacy
from coordinator.secure_aggregation.task_check import require_secure
from coordinator.selection.policies import policy
from coordinator.workers import backbones
from models import packages
from models.backbones.views import sensed
from models.data import window_set
from models.registry import admit, method
from models.spec import MethodSpec
from protocol.cohort import MAX_MEMBERS
from protocol.errors import Misconfigured
from protocol.frames.frame import DEFAULT_LIMITS
from protocol.messages import MAX_MESSAGE_BYTES, encode
from protocol.tasks.announcement import MAX_ANNOUNCED_BYTES, TaskAnnouncement
from protocol.tasks.task import Task
from runtime.settings.load import load_toml


def load_task(settings: CoordinatorSettings) -> tuple[Task, MethodSpec[Any]]:
    """Read the task and check it, its method and the method's options.

    Raises:
        Misconfigured: the message names the task file, and each wrong key in a line.
    """
    task = load_toml(Task, settings.task, named_by="task in coordinator.toml")
    task = prepared(task, settings.task)
    packages.require(task, settings.packages.allow)
    admit(task, settings.packages.allow)
    wrong = problems(task)
    if wrong:
        raise Misconfigured("\n".join(f"{settings.task}: {words}" for words in wrong))
    if packages.is_own_method(task) and settings.compute.ray:
        raise Misconfigured(
            f"{settings.task}: method {task.method!r} is of a package, which the nodes of a cluster do not "
            "import; leave compute.ray out"
        )
    _check_evaluation(settings.evaluation.data, task)
    spec = method(task.method)
    return spec.completed(task), spec


def prepared(task: Task, file: Path) -> Task:
    """The task of a file with its backbones measured, by a child process.

    Raises:
        Misconfigured: one cannot be used; the message names the file.
    """
    try:
        return backbones.prepare(task, file.parent)
    except Misconfigured as error:
        raise Misconfigured(f"{file}: {error}") from None


def problems(task: Task) -> list[str]:
    """What a coordinator cannot do for a task, naming the key; empty: nothing."""
    checks: list[Callable[[], object]] = [
        lambda: policy(task.rounds.selection),
        lambda: _check_draw(task),
        lambda: _check_announcement(task),
    ]
    try:
        spec = method(task.method)
    except Misconfigured as error:
        return [str(error), *_complaints(checks)]
    return _complaints(
        [
            lambda: _check_size(task, spec),
            lambda: spec.require_labelled(task),
            lambda: require_privacy(task, spec),
            lambda: require_secure(task, spec),
            *checks,
        ]
    )


def _complaints(checks: Iterable[Callable[[], object]]) -> list[str]:
    found = []
    for check in checks:
        try:
            check()
        except Misconfigured as error:
            found += str(error).splitlines()
    return found


def _check_size(task: Task, spec: MethodSpec[Any]) -> None:
    """Check the method's options, and whether a device can read back what it may own (two bytes a number)."""
    spec.configure(task)
    size, most = 2 * spec.beyond(task), DEFAULT_LIMITS.max_bytes
    if size > most:
        raise Misconfigured(
            f"graph.max_entities: what one device may own takes up to {size} bytes, and a device reads at "
            f"most {most}; lower it, or the size of an entity in the method's config"
        )


def _check_announcement(task: Task) -> None:
    """Check the size of the announcement: devices refuse a larger one, and would never learn of the task."""
    try:
        size = len(encode(TaskAnnouncement.of(task)))
    except ValidationError:
        size = MAX_MESSAGE_BYTES
    if size > MAX_ANNOUNCED_BYTES:
        raise Misconfigured(
            f"the task's announcement has {size} bytes or more, and at most {MAX_ANNOUNCED_BYTES} are sent: "
            "use fewer or shorter labels, targets or options of the method"
        )


def _check_draw(task: Task) -> None:
    drawn, least = task.rounds.devices_per_round, task.rounds.min_devices
    if drawn is not None and drawn < least:
        raise Misconfigured(
            f"rounds.devices_per_round: {drawn} is less than rounds.min_devices, {least}: "
            "no round would ever open"
        )
    if drawn is not None and drawn > MAX_MEMBERS and policy(task.rounds.selection).by_name:
        raise Misconfigured(
            f"rounds.devices_per_round: {drawn}, and rounds.selection = {task.rounds.selection!r} can name "
            f'at most {MAX_MEMBERS} in an offer; use selection = "uniform" for more'
        )


def _check_evaluation(data: Path | None, task: Task) -> None:
    """Check the evaluation data now, not after the worker has made a model that nothing can evaluate."""
    if data is None:
        return
    if task.graph is not None:
        raise Misconfigured(
            f"evaluation.data: task {task.name!r} is of knowledge graphs, and there is none here to judge "
            "versions on; leave it out: a version's metrics are the mean of what its devices report"
        )
    if not data.is_file():
        raise Misconfigured(
            f"evaluation.data: {data} is no file; name a labelled window set (npz) or leave it out"
        )
    try:
        windows = window_set.load(data, sensed(task))
    except Misconfigured as error:
        raise Misconfigured(f"evaluation.data: {error}") from None
    if not any((~np.isnan(window_set.target(windows, name))).any() for name in _labelled(task)):
        raise Misconfigured(f"evaluation.data: {data}: none of its {len(windows)} windows is labelled")


def _labelled(task: Task) -> tuple[str, ...]:
    """The targets of which one must have labels, for a version to be evaluated."""
    return tuple(target.name for target in task.objectives if target.kind == "classification")
