"""The report of ``lichen simulate`` as text."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_SHOWN: Final = 20
"""Number of devices whose weights are shown, the smallest weights first."""


def show(report: dict[str, Any]) -> None:
    """Print the history as a table."""
    table = Table(title=f"{report['task']} ({report['method']}), seed {report['seed']}", title_justify="left")
    last = report["rounds"][-1]["metrics"]
    others = [name for name in last if "/" in name]
    for name in ("round", "devices", "bytes up", "bytes down", "accuracy", "macro F1", *others, "refused"):
        table.add_column(name, justify="right", overflow="fold")
    for record in report["rounds"]:
        metrics = record["metrics"]
        table.add_row(
            str(record["round"]),
            str(len(record["accepted"])),
            f"{sum(record['bytes_up'].values()):,}",
            f"{sum(record['bytes_down'].values()):,}",
            *(_number(metrics.get(name)) for name in ("accuracy", "macro_f1", *others)),
            "; ".join(escape(f"{name}: {why}") for name, why in record["refused"].items()),
        )
    console = Console()
    console.print(table)
    if why := report.get("ended"):
        number = len(report["rounds"])
        never = "" if "privacy." in why else " (rounds.patience = 0: they never end early)"
        words = f"the rounds ended with version {number}: {why}{never}"
        console.print(words, highlight=False, markup=False)
    if private := report.get("privacy"):
        console.print(f"privacy: {private['words']}", highlight=False, markup=False)
    if local := report.get("local_privacy"):
        console.print(_local(local), highlight=False, markup=False, soft_wrap=True)
    _weighed(console, report["rounds"])
    _judged_on(console, report)
    _classes(console, report["by_class"])
    _alone(console, report)
    for kind, parts in report.get("by", {}).items():
        _parts(console, f"the last version by {kind}", parts)
    if why := report.get("not_judged"):
        console.print(f"the fleet's model is not evaluated: {why}", highlight=False, markup=False)
    judged = report.get("personal", {}).values()
    if judged:
        own = sum(scores["personal"]["accuracy"] for scores in judged) / len(judged)
        words = f"{own:.3f} with the personal model"
        if all(scores["global"] for scores in judged):
            common = sum(scores["global"]["accuracy"] for scores in judged) / len(judged)
            words = f"{common:.3f} with the global model, {words}"
        console.print(f"on each device's own classes: mean accuracy {words}")


def _local(accounts: Mapping[str, Mapping[str, float]]) -> str:
    """The accounts of devices under ``[local_privacy]`` in a line."""
    ranges = []
    for key, unit in (("epsilon", "one window"), ("epsilon_moment", "one moment")):
        found = sorted(one[key] for one in accounts.values())
        low, high = f"{found[0]:.3g}", f"{found[-1]:.3g}"
        ranges.append(f"{low if low == high else f'{low} to {high}'} for {unit}")
    delta = next(iter(accounts.values()))["delta"]
    return (
        f"local privacy of {len(accounts)} devices: epsilon {', '.join(ranges)} of a device, at "
        f"delta {delta:g} (each device's in the report: local_privacy)"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _judged_on(console: Console, report: Mapping[str, Any]) -> None:
    """Print the number of test windows by class."""
    judged = report["judged_on"]
    if judged is None:
        return
    counts = ", ".join(f"{label} {count}" for label, count in judged["by_class"].items())
    console.print(f"evaluated on {judged['windows']} windows: {counts}", highlight=False, markup=False)
    if sum(count > 0 for count in judged["by_class"].values()) == 1:
        console.print("all of them have one class: their accuracy says nothing", style="yellow")


def _alone(console: Console, report: Mapping[str, Any]) -> None:
    reached = report.get("alone", {})
    if not reached:
        return
    _parts(console, "each device alone", reached)
    for name, words in (("accuracy", "accuracy"), ("macro_f1", "macro F1")):
        values = [metrics[name] for metrics in reached.values()]
        console.print(f"each device alone: mean {words} {sum(values) / len(values):.3f}")
    if silent := len(report["devices"]) - len(reached):
        words = (
            f"{silent} devices are not evaluated: they do not train, or lack labels of every evaluated target"
        )
        console.print(words, highlight=False)


def _parts(console: Console, title: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    """Print a row of scores for each part."""
    others = [*dict.fromkeys(name for metrics in parts.values() for name in metrics if "/" in name)]
    table = Table(title=title, title_justify="left")
    for column in ("", "windows", "accuracy", "macro F1", *others):
        table.add_column(column, justify="right", overflow="fold")
    for name, metrics in parts.items():
        numbers = (_number(metrics.get(one)) for one in ("accuracy", "macro_f1", *others))
        table.add_row(escape(name), f"{metrics['windows']:.0f}", *numbers)
    console.print(table)


def _classes(console: Console, found: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print a row of scores for each class, the worst ones if there are many."""
    if not found:
        return
    worst = sorted(found, key=lambda name: found[name]["f1"] or 0.0)[:_SHOWN]
    shown = [*found] if len(found) <= _SHOWN else worst
    title = "the last version by class" + (", the worst ones" if len(found) > _SHOWN else "")
    table = Table(title=title, title_justify="left")
    for column in ("", "windows", "recall", "precision", "F1"):
        table.add_column(column, justify="right", overflow="fold")
    for name in shown:
        scores = (_number(found[name][one]) for one in ("recall", "precision", "f1"))
        table.add_row(escape(name), f"{found[name]['windows']:.0f}", *scores)
    console.print(table)


def _weighed(console: Console, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Print the weights of the last round of a guided method."""
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
