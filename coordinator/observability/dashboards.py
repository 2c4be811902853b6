"""The Grafana dashboards as code: ``python -m coordinator.observability.dashboards`` writes the JSON files.

A panel's expressions choose the fleet by the label that the scrape configuration gives, and sum over the
processes of a cluster. Series of further tasks have the label ``task``, those of the main task have none:
each task is a line of its own, and the variable ``task`` chooses.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: its heading.
        words: what it shows, for the reader of the dashboard.
        expressions: PromQL by legend.
        unit: of Grafana.
        kind: of Grafana.
        width: of 24 columns.
    """

    title: str
    words: str
    expressions: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


def _of(name: str, more: str = "") -> str:
    return f'{name}{{fleet="$fleet", task=~"$task"{more}}}'


def _of_process(name: str) -> str:
    """Of a process, whatever tasks it has."""
    return f'{name}{{fleet="$fleet"}}'


def _most(name: str, by: str = "") -> str:
    """By task: the processes of a cluster show the same."""
    return f"max by ({f'task, {by}' if by else 'task'}) ({_of(name)})"


def _all(name: str, more: str = "") -> str:
    """By task: the sum over the processes of a cluster."""
    return f"sum by (task) ({_of(name, more)})"


def _rate(name: str, by: str = "") -> str:
    return f"sum by ({f'task, {by}' if by else 'task'}) (rate({_of(name)}[5m]))"


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Median and extremes of the devices."""
    buckets = _of(f"lichen_telemetry_{metric}_bucket")
    labels = f"task, le, {by}" if by else "task, le"
    legend = f" {{{{{by}}}}}" if by else ""
    return {
        f"{name}{legend}": f"histogram_quantile({share}, sum by ({labels}) ({buckets}))"
        for name, share in (("10 %", 0.1), ("median", 0.5), ("95 %", 0.95))
    }


def _beyond(metric: str, le: str) -> str:
    """Devices whose value is above a bucket's end."""
    name = f"lichen_telemetry_{metric}"
    below = f', le="{le}"'
    return f"{_all(f'{name}_count')} - {_all(f'{name}_bucket', below)}"


ROUNDS: Final = (
    Panel("Round", "The round that is open", {"round": _most("lichen_round")}, kind="stat", width=3),
    Panel("Version", "The newest version", {"version": _most("lichen_version")}, kind="stat", width=3),
    Panel(
        "Devices online",
        "Devices that are online now",
        {"online": _most("lichen_devices_online")},
        kind="stat",
        width=3,
    ),
    Panel(
        "In quarantine",
        "Devices whose messages are ignored for a time, after refusals",
        {"quarantined": _most("lichen_quarantined")},
        kind="stat",
        width=3,
    ),
    Panel(
        "Phase",
        "What the coordinator does: 1 for the present phase",
        {"{{phase}}": _most("lichen_phase", "phase")},
        width=12,
    ),
    Panel(
        "Metrics of the newest version",
        "By the coordinator's evaluation, or what devices report",
        {"{{metric}}": _most("lichen_version_metric", "metric")},
        width=12,
    ),
    Panel(
        "This round",
        "Devices that were selected, and that delivered",
        {
            "selected": _most("lichen_selected"),
            "delivered": _most("lichen_delivered"),
        },
        width=12,
    ),
    Panel("Updates accepted", "In a second", {"accepted": _rate("lichen_updates_accepted_total")}, "ops"),
    Panel(
        "Refusals", "In a second, by reason", {"{{reason}}": _rate("lichen_refused_total", "reason")}, "ops"
    ),
    Panel(
        "Bytes",
        "From and to devices, in a second",
        {"up": _rate("lichen_bytes_up_total"), "down": _rate("lichen_bytes_down_total")},
        "Bps",
    ),
    Panel(
        "Devices with data",
        "Online devices that have windows of a modality and a label",
        {"{{modality}} {{label}}": f"max by (modality, label) ({_of('lichen_coverage')})"},
        width=12,
    ),
    Panel(
        "Rollout",
        "Devices of the present rollout by phase of their trial (rollout.mode = staged)",
        {"{{phase}}": _most("lichen_rollout_devices", "phase")},
        width=12,
    ),
    Panel(
        "Dropped messages",
        "In a second: beyond a device's share, and of barred devices",
        {
            "dropped": _rate("lichen_messages_dropped_total"),
            "barred": _rate("lichen_messages_turned_away_total"),
        },
        "ops",
    ),
    Panel(
        "Longest stall",
        "Longest time for which the event loop did nothing else",
        {"{{instance}}": f"max by (instance) ({_of_process('lichen_loop_stall_seconds')})"},
        "s",
    ),
    Panel(
        "Free disk of the coordinator",
        "On the disk of state_dir",
        {"{{instance}}": f"min by (instance) ({_of_process('lichen_disk_free_bytes')})"},
        "bytes",
    ),
)
DEVICES: Final = (
    Panel(
        "Devices that report",
        "Devices that are online, and with a recent report about themselves",
        {
            "online": _most("lichen_devices_online"),
            "report": _all("lichen_telemetry_devices"),
        },
    ),
    Panel("Free disk", "Of the devices", _quantiles("disk_free_bytes"), "bytes"),
    Panel(
        "Devices with less than 100 MB of disk",
        "Such a device soon stores no windows",
        {"devices": _all("lichen_telemetry_disk_free_bytes_bucket", ', le="1e+08"')},
        kind="stat",
    ),
    Panel("Temperature", "Of the hottest thermal zone", _quantiles("temperature_c"), "celsius"),
    Panel(
        "Devices above 80 °C",
        "Such a device slows down",
        {"devices": _beyond("temperature_c", "80")},
        kind="stat",
    ),
    Panel("CPU of the agent", "1 is one core", _quantiles("cpu_share"), "percentunit"),
    Panel("Load of the machine", "Load average by core", _quantiles("load_share")),
    Panel("Memory of the agent", "Resident", _quantiles("memory_bytes"), "bytes"),
    Panel("Free memory", "What the machine has left", _quantiles("memory_available_bytes"), "bytes"),
    Panel("Updates that wait", "Without a receipt, in the spool", _quantiles("spool_updates")),
    Panel("Spool", "Bytes", _quantiles("spool_bytes"), "bytes"),
    Panel("Windows", "In a second, by modality", _quantiles("windows_per_s", "modality"), "ops"),
    Panel("Quality", "Of the windows, by modality", _quantiles("quality", "modality"), "percentunit"),
    Panel("Predictions", "In a second", _quantiles("predictions_per_s"), "ops"),
    Panel("Latency", "95th percentile of each device", _quantiles("latency_p95_s"), "s"),
    Panel("Median latency", "Of each device", _quantiles("latency_p50_s"), "s"),
    Panel("Lost connections", "Since the agents' starts", _quantiles("reconnects")),
    Panel("Uptime", "Of the agents", _quantiles("uptime_s"), "s"),
)
DASHBOARDS: Final[Mapping[str, tuple[str, Sequence[Panel]]]] = {
    "grafana-fleet.json": ("lichen: fleet", ROUNDS),
    "grafana-devices.json": ("lichen: devices", DEVICES),
}
"""By file: title and panels."""


def dashboard(title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """A dashboard of Grafana; panels fill rows from the left."""
    found, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        found.append(_panel(panel, number, x, y))
        x += panel.width
    return {
        "uid": title.replace(": ", "-"),
        "title": title,
        "tags": ["lichen"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "fleet",
                    "type": "query",
                    "datasource": _DATASOURCE,
                    "query": "label_values(lichen_devices_online, fleet)",
                    "refresh": 2,
                },
                {
                    "name": "task",
                    "label": "Further task",
                    "type": "query",
                    "datasource": _DATASOURCE,
                    "query": 'label_values(lichen_round{fleet="$fleet"}, task)',
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": found,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.words,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "expr": expression,
                "legendFormat": legend if "task" not in expression else f"{{{{task}}}} {legend}",
                "datasource": _DATASOURCE,
            }
            for n, (legend, expression) in enumerate(panel.expressions.items())
        ],
    }


def rendered() -> dict[str, str]:
    """The text of each file."""
    return {
        file: json.dumps(dashboard(title, panels), indent=1, ensure_ascii=False) + "\n"
        for file, (title, panels) in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for _file, _text in rendered().items():
        (FOLDER / _file).write_text(_text, encoding="utf-8")
