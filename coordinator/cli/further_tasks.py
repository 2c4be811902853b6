"""``lichen coordinator status``: a line for each further task, from its tables and the reports about it."""

from collections.abc import Iterator
from typing import Any

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.task_reports import TaskReport, read_reports
from coordinator.round_machine.queries import replay
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.text import one_line
from runtime.waits import span

_NOT_RUNNING = "not running"


def further_tasks(
    store: Database, settings: CoordinatorSettings, *, reported: bool | None
) -> list[dict[str, Any]]:
    """The further tasks: those of the file, and those that are ending.

    Args:
        store: of the main task.
        settings: of the main task.
        reported: whether a process runs that reports them: ``lichen coordinator serve``.
    """
    if settings.further_task is not None:
        return []
    reports = read_reports(store) if reported else {}
    ending = [name for name, one in reports.items() if one.state == "ending"]
    return [
        _task(settings, name, reports.get(name)) for name in dict.fromkeys((*settings.task_names(), *ending))
    ]


def _task(settings: CoordinatorSettings, name: str, report: TaskReport | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "state": _NOT_RUNNING, "why": "", "again": None}
    if report is not None:
        found |= {"state": report.state, "why": report.why, "again": report.again}
    if name not in settings.task_names():
        return found
    location = settings.for_task(name).location
    try:
        if not location.exists():
            return found
        with location.database(read_only=True) as store:
            state, rules = replay(store.journal())
            served, why = store.is_served(), store.get_meta("why") or ""
    except LichenError as error:
        return found | {"why": found["why"] or str(error)}
    if report is None and served:  # a process of its own, as with lichen coordinator lead --task
        found["state"] = "running"
    return found | {
        "phase": state.phase.value,
        "round": state.round,
        "rounds": None if rules is None else rules.rounds,
        "version": state.version,
        "why": found["why"] or why,
    }


def task_lines(tasks: list[dict[str, Any]], now: float) -> Iterator[str]:
    """A line for each."""
    for one in tasks:
        said = [one["state"]]
        if "phase" in one:
            of = "" if one["rounds"] is None else f" of {one['rounds']}"
            version = "no version yet" if one["version"] < 0 else f"version {one['version']}"
            said.append(f"{one['phase']}, round {one['round']}{of}, {version}")
        if one["again"] is not None:
            said.append(f"tried again in {span(max(0.0, one['again'] - now))}")
        why = f": {one_line(one['why'])}" if one["why"] else ""
        yield f"task {one['name']}: {'; '.join(said)}{why}"
