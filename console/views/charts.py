"""Charts of a device's own metrics, for ``runtime/web/assets/live.js``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

DRIFT: Final = "Drift of the model's answers"
_MB: Final = 1e6
_MOST_LINES: Final = 16
_CHARTS: Final[Sequence[tuple[str, str, Sequence[tuple[str, str]], float]]] = (
    ("Predictions in a second", "", (("predictions_per_s", "predictions"),), 1.0),
    ("Latency of predictions", "s", (("latency_p50_s", "median"), ("latency_p95_s", "95th percentile")), 1.0),
    ("Processor", "cores", (("cpu_share", "agent"), ("load_share", "load by core")), 1.0),
    ("Memory", "MB", (("memory_bytes", "agent"), ("memory_available_bytes", "available")), _MB),
    ("Disk", "MB", (("disk_free_bytes", "free"), ("spool_bytes", "spool")), _MB),
    ("Temperature", "degrees Celsius", (("temperature_c", "hottest zone"),), 1.0),
    ("Updates in the spool", "", (("spool_updates", "updates"),), 1.0),
    (DRIFT, "", (("drift", "distance over its limit"),), 1.0),
    ("Lost connections since the start", "", (("reconnects", "reconnects"),), 1.0),
)
"""Title, unit, metrics with their words, and what a value is divided by."""
_BY_MODALITY: Final = (
    ("Quality by modality", "quality"),
    ("Windows in a second by modality", "windows_per_s"),
)

Columns = Mapping[str, Sequence[float | None]]


def charts_of(history: Columns) -> list[dict[str, Any]]:
    """One chart for each group of metrics that there are: ``title``, ``unit``, and what is drawn as ``plot``.

    Args:
        history: ``at`` (Unix seconds) and a column of the same length for each metric.
    """
    at = history.get("at", ())
    if len(at) < 2:  # noqa: PLR2004 - a line has two points
        return []
    found = []
    for title, metric in _BY_MODALITY:
        names = sorted(name for name in history if name.startswith(f"{metric}/"))[:_MOST_LINES]
        named = [(name, name.partition("/")[2]) for name in names]
        found.append(_chart(title, "", named, history, 1.0))
        if metric == "quality":
            found[-1]["plot"] |= {"min": 0, "max": 1}
    for title, unit, drawn, by in _CHARTS:
        found.append(_chart(title, unit, drawn, history, by))
        if title == DRIFT and found[-1]["plot"]["series"]:
            limit = {"name": "limit", "values": [1.0] * len(at), "dashed": True}
            found[-1]["plot"]["series"].append(limit)
    return [chart for chart in found if chart["plot"]["series"]]


def _chart(
    title: str, unit: str, lines: Sequence[tuple[str, str]], history: Columns, by: float
) -> dict[str, Any]:
    series = [
        {"name": words, "values": [None if one is None else one / by for one in history[name]]}
        for name, words in lines
        if name in history
    ]
    plot = {"time": True, "x": list(history["at"]), "series": series, "label": "At"}
    return {"title": title, "unit": unit, "plot": plot}
