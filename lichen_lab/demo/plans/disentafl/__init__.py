"""DisentAFL's demo: watches with different sensors, that learn different things, share one supernet."""

from rich.table import Table

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.core.screen import summary
from lichen_lab.demo.plans.disentafl.checks import checks
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.prepare import prepare
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, WatchResults
from lichen_lab.demo.plans.disentafl.steps import live


def table(results: DisentaflResults) -> Table:
    """One row a device; scores in percent, r2 in hundredths, with the fleet and alone."""
    columns = ("reads and learns", *(f"{IN_WORDS[one]} (alone)" for one in results.targets), "down a round")
    rows = (
        (one.name, one.kind, *(_cell(one, target) for target in results.targets), _down(one, results))
        for one in results.devices
    )
    return summary("on people nobody trained on", columns, rows, words=1)


def _cell(device: WatchResults, target: str) -> str:
    score, alone = device.scores.get(target), device.alone.get(target)
    if score is None:
        return ""
    return f"{100 * score:.0f} ({100 * alone:.0f})" if alone is not None else f"{100 * score:.0f}"


def _down(device: WatchResults, results: DisentaflResults) -> str:
    if device.down is None or not results.supernet:
        return "observes" if device.observes else ""
    return f"{device.down / 1000:.0f} kB, {100 * device.down / results.supernet:.0f} %"


DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
