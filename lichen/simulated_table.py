"""The report of ``lichen simulate`` for people."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


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
