"""What a version is in a store of experiments: names, values, parameters."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coordinator.status.versions import VersionRow
from lichen.tracking.fleet_record import VersionLineage
from protocol.tasks.task import Task

_FOREIGN: Final = re.compile(r"[^\w\-. /:]")
_NAME: Final = 250
_VALUE: Final = 6000
_TAG: Final = 5000


@dataclass(frozen=True)
class MetricEntry:
    """One value. ``step``: the version; ``wall_ms``: when the version was made, Unix milliseconds."""

    name: str
    value: float
    wall_ms: int
    step: int


def metrics_of(row: VersionRow) -> list[MetricEntry]:
    """All values of a version."""
    given: dict[str, float | None] = {
        **row.metrics,
        "devices": row.devices,
        "bytes_up": row.bytes_up,
        "bytes_down": row.bytes_down,
    }
    return [
        MetricEntry(entry_name(name), float(value), round(1000 * row.wall), row.version)
        for name, value in given.items()
        if value is not None
    ]


def missing_metrics(rows: Iterable[VersionRow], there: Mapping[str, Collection[int]]) -> list[MetricEntry]:
    """The values of versions that the store lacks; ``there``: name -> steps that it has."""
    return [one for row in rows for one in metrics_of(row) if one.step not in there.get(one.name, ())]


def params_of(task: Task) -> dict[str, str]:
    """The task, flat: ``network.feature_dim``, ``modalities.acc.channels``; no key is left out."""
    return {entry_name(name): text[:_VALUE] for name, text in _flat("", task.model_dump(mode="json"))}


def _flat(at: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{at}.{key}" if at else key, inner)
    elif isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        for one in value:
            yield from _flat(
                f"{at}.{one['name']}", {key: inner for key, inner in one.items() if key != "name"}
            )
    else:
        yield at, value if isinstance(value, str) else json.dumps(value)


def lineage_tags(lineage: VersionLineage, row: VersionRow) -> dict[str, str]:
    """The tags of a registered version."""
    updates: Mapping[str, str] = lineage.chain[0]["updates"]
    tags = {
        "lichen:version": str(lineage.version),
        "lichen:manifest": lineage.manifest,
        "lichen:parent_version": "" if lineage.parent_version is None else str(lineage.parent_version),
        "lichen:parent_manifest": lineage.parent or "",
        "lichen:devices": str(row.devices),
        "lichen:updates": _shortened(updates),
        "lichen:bundles": ", ".join(one.digest for one in lineage.bundles)[:_TAG],
    }
    return tags | {f"lichen:{name}": f"{value:.6g}" for name, value in sorted(row.metrics.items())[:20]}


def _shortened(updates: Mapping[str, str]) -> str:
    """``device digest`` each; of too many the first."""
    words = [f"{device} {digest[:16]}" for device, digest in updates.items()]
    text = ", ".join(words)
    while len(text) > _TAG:
        words = words[: len(words) // 2]
        text = f"{', '.join(words)}, and {len(updates) - len(words)} more"
    return text


def entry_name(name: str) -> str:
    """A name that stores accept."""
    return _FOREIGN.sub("_", name).strip("/")[:_NAME] or "_"
