"""``lichen simulate --faults``: the real daemons in a deterministic simulation, seed after seed."""

import json
import time
from typing import Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lichen_lab.simulation.deterministic.batch import Summary, WorldKind, live_through, replay, run_kind
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from runtime import exit_codes

_EVERY_S: Final = 5.0
_SHOWN: Final = 10


def faults(
    *, seeds: int, seed: int | None, workers: int, as_json: bool, trace: bool, kind: str = WorldKind.PLAIN
) -> None:
    """Run seeds, and report their results.

    Args:
        seeds: how many, from 0 on (from ``seed`` on, where that is given).
        seed: the first; alone where ``trace`` is on.
        workers: processes.
        as_json: one object on standard output instead of a table.
        trace: print every event of one seed.
        kind: of the worlds, of :class:`WorldKind`.

    Raises:
        typer.Exit: 70 if a promise was broken.
    """
    if trace:
        _show_one(run_kind(WorldKind(kind), seed or 0, trace=typer.echo))
        return
    first = seed or 0
    errors, said, said_of = Console(stderr=True), [time.perf_counter()], [0]

    def heard(summary: Summary) -> None:
        for one in summary.failed[said_of[0] :]:
            errors.print(f"simulate: seed {one.seed}: {one.violation}", style="bold", markup=False)
        said_of[0] = len(summary.failed)
        if time.perf_counter() - said[0] >= _EVERY_S:
            said[0] = time.perf_counter()
            rate = summary.seeds / max(summary.seconds, 1e-9)
            left = (seeds - summary.seeds) / max(rate, 1e-9)
            words = f"{summary.seeds} of {seeds} seeds, {len(summary.failed)} failed"
            errors.print(f"simulate: {words}; {rate:.1f} seeds/s, {left:.0f} s left", style="dim")

    summary = live_through(range(first, first + seeds), workers, heard, first=first, kind=WorldKind(kind))
    if as_json:
        typer.echo(json.dumps(summary.as_json(), allow_nan=False))
    else:
        show(summary)
    if summary.failed:
        raise typer.Exit(exit_codes.SOFTWARE)


def _show_one(outcome: WorldOutcome) -> None:
    for fault in outcome.scenario.faults:
        typer.echo(f"planned: {fault}")
    its = outcome.scenario.protection
    for planned in () if its is None else its.stage_faults:
        typer.echo(f"planned: at {planned.stage} {planned.after}: {planned.fault}")
    typer.echo(f"seed {outcome.seed}: {outcome.violation or 'no promise was broken'}")
    typer.echo(f"{outcome.steps} steps, {outcome.messages} messages, trace {outcome.mark}")
    if outcome.violation:
        raise typer.Exit(exit_codes.SOFTWARE)


def show(summary: Summary) -> None:
    """Print a summary for people."""
    console = Console(width=None if Console().is_terminal else 160)
    last = summary.first + summary.seeds - 1
    table = Table(title=f"seeds {summary.first} to {last}", title_justify="left")
    table.add_column("fault", overflow="fold")
    table.add_column("times", justify="right")
    for kind, times in sorted(summary.faults.items(), key=lambda item: -item[1]):
        table.add_row(escape(kind), f"{times:,}")
    console.print(table)
    console.print(
        f"{summary.seeds:,} seeds, {summary.steps:,} steps, {summary.messages:,} messages, "
        f"{summary.moments:,} moments at which a process could have ended, {summary.counted:,} updates "
        f"counted, {summary.virtual_s / 3600:,.1f} virtual hours in {summary.seconds:,.0f} s"
    )
    if summary.journal.count:
        masked, control = summary.journal.deviations
        console.print(
            f"{summary.journal.count:,} bytes of masked updates in journals: {masked:.2f} standard "
            f"deviations of chi-square from uniform ones; without masks {control:,.0f}"
        )
    if not summary.failed:
        console.print("no promise was broken")
        return
    console.print(f"{len(summary.failed)} seeds broke a promise:")
    for one in summary.failed[:_SHOWN]:
        console.print(f"  seed {one.seed}: {escape(one.violation)}", highlight=False)
        console.print(f"    {replay(one)}", highlight=False)
