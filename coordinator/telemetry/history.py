"""A device's own metrics over time, bounded: when the points are full, every second one is left out. Pure.

The history begins with a point for each report. Each thinning doubles the step between points, up to
``LONGEST_STEP_S``; from then on the oldest point goes. So a new device is seen minute by minute, and one that
runs for days by the half hour, back to ``MOST_POINTS`` times that.
"""

from collections.abc import Mapping
from typing import Any, Final

from protocol.telemetry import Telemetry

MOST_POINTS: Final = 48
LONGEST_STEP_S: Final = 1800.0
_DIGITS: Final = 4
_EARLY: Final = 0.75
"""Share of the step after which a point is taken: reports come a little early or late."""

Columns = dict[str, list[float | None]]
"""``at`` (Unix seconds, ascending) and a column of the same length for each metric; None: not reported."""
AT: Final = "at"


def flat(report: Telemetry, modalities: frozenset[str]) -> dict[str, float]:
    """The metrics of a report by name: a modality's are ``windows_per_s/acc`` and ``quality/acc``.

    Args:
        report: of a device.
        modalities: those of the task; others are left out.
    """
    found = {name: value for name, value in report if isinstance(value, int | float)}
    for modality, part in report.modalities.items():
        if modality in modalities:
            values = {f"{name}/{modality}": value for name, value in part}
            found |= {name: value for name, value in values.items() if value is not None}
    return found


def due_in_s(history: Mapping[str, Any], wall: float) -> float:
    """Seconds from ``wall`` (Unix seconds) until the next point may be added; 0: now."""
    at = history.get("columns", {}).get(AT)
    if not at or wall <= at[-1]:  # or the clock went back
        return 0.0
    return max(0.0, float(at[-1] + _EARLY * history["step_s"] - wall))


def added(history: Mapping[str, Any], wall: float, values: Mapping[str, float]) -> dict[str, Any]:
    """The history with one more point, whatever :func:`due_in_s` says.

    Args:
        history: ``step_s`` and ``columns``; empty at first.
        wall: of the point, Unix seconds.
        values: the metrics, by :func:`flat`.
    """
    step_s = float(history.get("step_s", 0.0))
    columns: Columns = {name: list(column) for name, column in history.get("columns", {}).items()}
    at = columns.setdefault(AT, [])
    if at and wall <= (at[-1] or 0.0):  # the clock went back: begin again
        columns, at, step_s = {AT: []}, [], 0.0
    if len(at) >= MOST_POINTS:
        if step_s < LONGEST_STEP_S:
            spread_s = ((at[-1] or 0.0) - (at[0] or 0.0)) / (len(at) - 1)
            step_s = min(LONGEST_STEP_S, 2 * max(spread_s, step_s))
            columns = {name: column[::2] for name, column in columns.items()}
        else:
            columns = {name: column[1:] for name, column in columns.items()}
    before = len(columns[AT])
    columns[AT].append(round(wall, 1))
    for name in {*values, *columns} - {AT}:
        column = columns.setdefault(name, [None] * before)
        value = values.get(name)
        column.append(None if value is None else float(f"{value:.{_DIGITS}g}"))
    present = {name: column for name, column in columns.items() if any(one is not None for one in column)}
    return {"step_s": round(step_s, 1), "columns": present}
