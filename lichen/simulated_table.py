"""The report of ``lichen simulate`` for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_SHOWN: Final = 20
"""Devices whose weights are shown: those with the least."""


def show(report: dict[str, Any]) -> None:
    """Print the history as a table."""
    table = Table(title=f"{report['task']} ({report['method']}), seed {report['seed']}", title_justify="left")
    for name in ("round", "devices", "bytes up", "bytes down", "accuracy", "refused"):
        table.add_column(name, justify="right", overflow="fold")
    for record in report["rounds"]:
        accuracy = record["metrics"].get("accuracy")
        table.add_row(
            str(record["round"]),
            str(len(record["accepted"])),
            f"{sum(record['bytes_up'].values()):,}",
            f"{sum(record['bytes_down'].values()):,}",
            "" if accuracy is None else f"{accuracy:.3f}",
            "; ".join(escape(f"{name}: {why}") for name, why in record["refused"].items()),
        )
    console = Console()
    console.print(table)
    _weighed(console, report["rounds"])
    reached = [metrics["accuracy"] for metrics in report.get("alone", {}).values()]
    if reached:
        console.print(f"each device alone: mean accuracy {sum(reached) / len(reached):.3f}")
    if why := report.get("not_judged"):
        console.print(f"the fleet's model is not judged: {why}", highlight=False, markup=False)
    judged = report.get("personal", {}).values()
    if judged:
        own = sum(one["personal"]["accuracy"] for one in judged) / len(judged)
        words = f"{own:.3f} with what it keeps for itself"
        if all(one["global"] for one in judged):
            common = sum(one["global"]["accuracy"] for one in judged) / len(judged)
            words = f"{common:.3f} with the global model, {words}"
        console.print(f"on each device's own classes: mean accuracy {words}")


def _weighed(console: Console, rounds: Sequence[Mapping[str, Any]]) -> None:
    """What the last round of a guided method made of the devices."""
    weighed = [record for record in rounds if record["weighing"]]
    if not weighed:
        return
    last = weighed[-1]["weighing"]
    names = {device for shares in last["weights"].values() for device in shares}
    least = {n: min(shares[n] for shares in last["weights"].values() if n in shares) for n in names}
    shown = sorted(names, key=lambda name: (least[name], name))[:_SHOWN]
    table = Table(title=f"weights in round {weighed[-1]['round']}, least first", title_justify="left")
    for column in ("device", *last["weights"]):
        table.add_column(column, justify="right", overflow="fold")
    for name in shown:
        shares = (part.get(name) for part in last["weights"].values())
        table.add_row(escape(name), *("" if share is None else f"{share:.3f}" for share in shares))
    console.print(table)
    if len(names) > len(shown):
        console.print(f"and {len(names) - len(shown)} more devices")
    for words in last["warnings"]:
        console.print(words, style="yellow", highlight=False, markup=False)
