"""Where an action on one task is written: its rows in the fleet's audit log, its orders beside the task."""

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.audit.log import AuditLog
from coordinator.config.coordinator import CoordinatorSettings


def fleet_log(settings: CoordinatorSettings) -> AuditLog:
    """The fleet's audit log, whose rows name the task of these settings. Raises as :class:`AuditLog`."""
    return AuditLog(settings.main.location, task=settings.further_task)


@contextmanager
def task_orders(settings: CoordinatorSettings, log: AuditLog) -> Iterator[AuditLog]:
    """The tables in which the coordinator of a task reads its orders.

    Args:
        settings: of the task.
        log: the fleet's: the main task has its orders in the same tables.

    Raises:
        Refused, Misconfigured, Transient: as :class:`AuditLog`.
    """
    if settings.further_task is None:
        yield log
        return
    with AuditLog(settings.location) as own:
        yield own
