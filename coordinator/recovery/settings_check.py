"""The check of one task's settings, for ``lichen coordinator check``."""

from typing import Any

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.recovery.folder_owner import check_owner
from coordinator.recovery.open_stores import open_bucket
from coordinator.task import load_task
from coordinator.workers.labelled_data import Own
from coordinator.workers.labelled_data import read as read_labelled
from models.spec import MethodSpec
from protocol.tasks.task import Task


def checked(settings: CoordinatorSettings) -> tuple[Task, MethodSpec[Any], Own | None]:
    """One task, its method and its labelled windows.

    Raises:
        Misconfigured: something is wrong with one of them, the state folder or the bucket.
        Transient: the bucket does not answer.
    """
    task, spec = load_task(settings)
    labelled = read_labelled(settings, task)
    location = settings.location
    if location.exists():
        with location.database(read_only=True) as store:
            check_owner(store, task, settings)
    if (bucket := open_bucket(settings.storage)) is not None:
        bucket.check()
    return task, spec, labelled
