"""The story of a run without labels, from the coordinator's history and from the comparing child. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from lichen_lab.demo.plans.tactfl.devices import UnlabelledWatch
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, UnlabelledStory, Weighed


def weighed(story: UnlabelledStory, history: Mapping[str, Any]) -> None:
    """Weights and similarities by round, as the coordinator keeps them."""
    story.weighed = [
        Weighed(
            round=row["round"],
            weights=found["weights"],
            similarity={part: matrix(rows) for part, rows in found["similarity"].items()},
            warnings=tuple(found["warnings"]),
        )
        for row in history["rounds"]
        if (found := row.get("weighing"))
    ]


def absent(story: UnlabelledStory, watches: Iterable[UnlabelledWatch]) -> None:
    """An update says nothing of a sensor that is not there: none of its windows has it."""
    sensors = {watch.name: watch.sensors for watch in watches}
    for device in story.devices:
        without = set(story.modalities) - set(sensors[device.name])
        device.missing |= dict.fromkeys(without, 1.0)


def matrix(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Device -> device -> similarity, of the rows that the coordinator keeps: each has ``others``."""
    return {device: {device: 1.0, **row["others"]} for device, row in rows.items()}


def rivals(story: UnlabelledStory, lines: Iterable[Mapping[str, Any]]) -> None:
    """Accuracies by rival, in the order of the seeds."""
    named = {name: Rival(name) for name in (RANDOM, LABELLED)}
    for line in lines:
        named[line["name"]].accuracies.append(float(line["accuracy"]))
    story.rivals = list(named.values())
