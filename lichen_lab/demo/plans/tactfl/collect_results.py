"""Collects the results of the demo without labels, from coordinator and comparing side job. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from lichen_lab.demo.plans.tactfl.devices import UnlabelledWatch
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, TactflResults, Weighing


def take_weighings(results: TactflResults, history: Mapping[str, Any]) -> None:
    """Fill in weights and similarities by round."""
    results.weighed = [
        Weighing(
            round=row["round"],
            weights=found["weights"],
            similarity={part: similarity_matrix(rows) for part, rows in found["similarity"].items()},
            warnings=tuple(found["warnings"]),
        )
        for row in history["rounds"]
        if (found := row.get("weighing"))
    ]


def mark_absent_sensors(results: TactflResults, watches: Iterable[UnlabelledWatch]) -> None:
    """Mark absent sensors as missing in all windows: updates do not mention them."""
    sensors = {watch.name: watch.sensors for watch in watches}
    for device in results.devices:
        without = set(results.modalities) - set(sensors[device.name])
        device.missing |= dict.fromkeys(without, 1.0)


def similarity_matrix(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Device -> device -> similarity, of the rows that the coordinator keeps: each has ``others``."""
    return {device: {device: 1.0, **row["others"]} for device, row in rows.items()}


def take_rivals(results: TactflResults, lines: Iterable[Mapping[str, Any]]) -> None:
    """Fill in accuracies by rival, in the order of the seeds."""
    named = {name: Rival(name) for name in (RANDOM, LABELLED)}
    for line in lines:
        named[line["name"]].accuracies.append(float(line["accuracy"]))
    results.rivals = list(named.values())
