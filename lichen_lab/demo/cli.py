"""``lichen demo``."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lichen_lab.demo import plans
from lichen_lab.demo.core import run, scenario
from lichen_lab.demo.core.results import Results
from lichen_lab.demo.core.screen import Screen
from lichen_lab.simulation.data import spar_fleet
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.logs import configure
from runtime.settings.load import LogSettings

app = typer.Typer(add_completion=False)
_LOG_WIDTH = 140
_STOPPED = 130
"""The exit status that shells expect of a program ended by Ctrl-C."""


@app.command()
def demo(
    *,
    method: Annotated[
        str, typer.Option(help=f"Method of the demo: {', '.join(plans.names())}.")
    ] = plans.DEFAULT,
    out: Annotated[Path, typer.Option(help="Folder for all output.")] = Path("demo-out"),
    rounds: Annotated[int, typer.Option(help="Rounds of learning.", min=1, max=200)] = spar_fleet.ROUNDS,
    speed: Annotated[float, typer.Option(help="Replay recordings this many times faster.", min=1)] = 20.0,
    seed: Annotated[int, typer.Option(help="Decides faults, order of exercises, initial model.", min=0)] = 0,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill one agent and the coordinator during a round.")
    ] = False,
    study: Annotated[
        bool,
        typer.Option(help="Also simulate several seeds and the alternatives, if the demo has them."),
    ] = True,
    study_seeds: Annotated[int, typer.Option(help="Seeds of the simulation.", min=1, max=20)] = 3,
    observer_python: Annotated[
        Path | None,
        typer.Option(
            help="Python of the observing device; it has only lichen[infer]. Default: .venv-observer"
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds until the demo gives up.", min=10)] = 1200.0,
    stay: Annotated[
        bool, typer.Option("--stay", help="Then run the fleet and its pages until Ctrl-C.")
    ] = False,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Run a whole fleet on this machine, on real data, from sensors to ONNX on a device.

    Starts an embedded broker, a coordinator, training agents and (except for knowledge graphs) an observing
    agent as processes, with sensors that fail. Exit status 0 only if every check holds.
    """
    shown = plans.demo(method)
    options = scenario.Options(
        out=out,
        rounds=rounds,
        speed=speed,
        seed=seed,
        chaos=chaos,
        study=study,
        study_seeds=study_seeds,
        observer_python=observer_python,
        timeout_s=timeout_s,
        stay=stay,
    )
    as_json = output_format is Format.JSON
    # Links and settings log as in the daemons; here the screen shows what happens.
    configure(LogSettings(level="error"))

    def finished(results: Results) -> None:
        if as_json:
            typer.echo(json.dumps(asdict(results)))
            return
        # Without a terminal the width is unknown, and a log can be wide.
        wide = screen.console if screen.console.is_terminal else Console(width=_LOG_WIDTH)
        print_result(results, shown.table(results), wide, out / "report.html")

    try:
        with Screen(quiet=as_json) as screen:
            results = asyncio.run(run.run(shown, options, screen, finished))
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("lichen demo: stopped; all of its processes are ended", err=True)
        raise typer.Exit(_STOPPED) from None
    except ExceptionGroup as group:
        # Two things ran side by side: report the first error.
        raise _first(group) from None
    if not results.worked:
        raise typer.Exit(exit_codes.SOFTWARE)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


def print_result(results: Results, table: Table | None, console: Console, page: Path) -> None:
    """The demo's own table, the checks and where the report is."""
    if table is not None:
        console.print()
        console.print(table)
    console.print()
    for check in results.checks:
        mark = "[green]✓[/]" if check.ok else "[red]✗[/]" if check.must else "[yellow]○[/]"
        console.print(f"{mark} {check.what}: {check.detail}", highlight=False, soft_wrap=True)
    console.print(f"\n{results.seconds:.0f} s. Report: {page}", highlight=False, soft_wrap=True)
