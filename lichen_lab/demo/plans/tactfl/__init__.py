"""TACTFL's demo: watches that know no label, one of them broken, and a coordinator that has a few labels."""

from rich.table import Table

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.core.screen import summary
from lichen_lab.demo.plans.tactfl.checks import checks
from lichen_lab.demo.plans.tactfl.prepare import prepare
from lichen_lab.demo.plans.tactfl.results import TactflResults
from lichen_lab.demo.plans.tactfl.steps import live


def table(results: TactflResults) -> Table:
    """One row a device: its weight in the last round by part, in percent, and beside the equal share."""
    last = results.weighed[-1].weights if results.weighed else {}
    rows = []
    for device in results.devices:
        name, relative = device.name, results.relative(device.name)
        shares = [f"{100 * part[name]:.1f}" if name in part else "" for part in last.values()]
        ratio = "" if relative is None else f"{relative:.2f}"
        rows.append((name, f"{device.people[0]}, {device.trouble}", *shares, ratio))
    columns = ("person, sensors", *last, "of an equal share")
    return summary("weights of the last round, %", columns, rows, words=1)


DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
