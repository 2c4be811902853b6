"""Rounds, and parts of the windows that a version was evaluated on, as tables for people."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protocol.tasks.task import LABEL
from runtime.text import first_few

_TABLE_METRICS: Final = ("accuracy", "macro_f1", "loss")
"""Metrics in the table, besides those that devices report; the JSON has all."""


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


def rounds_table(found: dict[str, Any]) -> Table:
    """The rounds, a row for each."""
    on_devices = found["evaluations"]
    more = ["on devices"] if on_devices else []
    table = Table(
        "round", "attempts", "devices", "quality by modality", "bytes up", "metrics", *more, title="Rounds"
    )
    of_targets = dict.fromkeys(n for row in found["rounds"] for n in row["metrics"] if "/" in n)
    shown = dict.fromkeys((*_TABLE_METRICS, *of_targets, *found["reported"]))
    for row in found["rounds"]:
        table.add_row(
            str(row["round"]),
            ", ".join(a["outcome"] or "open" for a in row["attempts"]),
            _who(row),
            "\n".join(f"{name} {value:.2f}" for name, value in _mean_quality(row["updates"]).items()),
            "" if row["bytes_up"] is None else f"{row['bytes_up']:,}",
            "\n".join(f"{name} {row['metrics'][name]:.3f}" for name in shown if name in row["metrics"]),
            *([evaluated_by_devices(on_devices.get(row["round"]))] if on_devices else []),
        )
    return table


def _who(row: dict[str, Any]) -> str:
    """How many delivered, and who did not."""
    here = {u["device"] for u in row["updates"] if not u["lost"]}
    asked = {d for attempt in row["attempts"] for d in attempt["selected"]} | here
    missing = sorted(asked - here)
    asked_for = max([len(asked), *(a["selected_count"] for a in row["attempts"])])
    return f"{len(here)} of {asked_for}" + (f", not {first_few(missing)}" if missing else "")


def _mean_quality(updates: list[dict[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for update in updates:
        for name, quality in update["quality"].items():
            values.setdefault(name, []).append(quality)
    return {name: sum(found) / len(found) for name, found in values.items()}
