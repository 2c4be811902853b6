"""Parts of the windows that a version was evaluated on, and their numbers, as text."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protocol.tasks.task import LABEL


class HistoryParts(StrEnum):
    """Values of :data:`models.training.evaluation.Part`."""

    GROUP = "group"
    MODALITIES = "modalities"


def judged_on(confusion: Mapping[str, Any]) -> str:
    """Of how many windows of which classes a version's scores are."""
    counts = [sum(row) for row in confusion["matrix"]]
    listed = ", ".join(f"{label} {n}" for label, n in zip(confusion["labels"], counts, strict=True))
    words = f"version {confusion['version']} was evaluated on {sum(counts)} windows: {listed}"
    one = sum(n > 0 for n in counts) == 1
    return f"{words}; they are all of one class: an accuracy of them tells nothing" if one else words


def evaluated_by_devices(found: Mapping[str, Any] | None) -> str:
    """The scores of a version on devices' held-back windows; empty if no device has evaluated it."""
    if found is None:
        return ""
    lines = []
    for target, scores in found["targets"].items():
        at = "" if target == LABEL else f"{target}/"
        shown = ((name, scores.get(name)) for name in ("accuracy", "macro_f1", "mae", "rmse"))
        lines += [f"{at}{name} {value:.3f}" for name, value in shown if value is not None]
    noun = "device" if found["devices"] == 1 else "devices"
    return "\n".join([*lines, f"{found['devices']:,} {noun}, {found['windows']:,} windows"])


def print_parts(found: Mapping[str, Any], kind: str) -> None:
    """The last version that was evaluated on such parts, a row for each; a message if there is none."""
    console, judged = Console(), [row for row in found["versions"] if row["by"].get(kind)]
    if not judged:
        words = f'no version was judged by {kind}: evaluation.by = ["{kind}"] in coordinator.toml asks for it'
        if kind == "group":
            words += ", where evaluation.data says whose each window is (lichen data windows writes it)"
        console.print(words, soft_wrap=True, markup=False, highlight=False)
        return
    parts = judged[-1]["by"][kind]
    others = [*dict.fromkeys(name for metrics in parts.values() for name in metrics if "/" in name)]
    table = Table(kind, "windows", "accuracy", "macro_f1", *others, title=f"Version {judged[-1]['version']}")
    for name, metrics in parts.items():
        numbers = (metrics.get(one) for one in ("accuracy", "macro_f1", *others))
        row = ("" if number is None else f"{number:.3f}" for number in numbers)
        table.add_row(escape(name), f"{metrics['windows']:.0f}", *row)
    console.print(table)
