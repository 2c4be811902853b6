"""``lichen bench NAME``: measure, and print a table or one JSON object."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lichen.bench import registry
from lichen.bench.result import Bench, Row, as_json, as_table
from protocol.errors import Misconfigured, Transient


class Format(StrEnum):
    """How the figures are printed."""

    TABLE = "table"
    JSON = "json"


Quick = Annotated[bool, typer.Option("--quick", help="One repetition; under a minute.")]
Shape = Annotated[
    Format, typer.Option("--format", help="A table for people, or one JSON object for programs.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Also write NAME.json into this folder.")]

app = typer.Typer(no_args_is_help=True, help="Measure what lichen promises; each prints a table or JSON.")
_ERRORS = Console(stderr=True)


def _show(bench: Bench, rows: list[Row], shape: Format, out: Path | None) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{bench.name}.json").write_text(as_json(bench, rows) + "\n")
    if shape is Format.JSON:
        typer.echo(as_json(bench, rows))
    else:
        width = None if Console().is_terminal else 160
        Console(width=width).print(as_table(bench, rows))


def _say(name: str, line: str) -> None:
    _ERRORS.print(f"{name}: {line}", style="dim", markup=False)


def _run(names: tuple[str, ...], *, quick: bool, shape: Format, out: Path | None) -> None:
    """Run them one after the other; one that cannot run does not stop the next."""
    failed = 0
    for name in names:
        try:
            bench = registry.bench(name)
            rows = bench.run(quick, partial(_say, name))
            _show(bench, rows, shape, out)
        except Misconfigured as error:
            _ERRORS.print(f"{name}: {error}", markup=False)
            failed = failed or 78
        except Transient as error:
            _ERRORS.print(f"{name}: {error}", markup=False)
            failed = failed or 75
    if failed:
        raise typer.Exit(failed)


def _add(name: str) -> None:
    def command(*, quick: Quick = False, shape: Shape = Format.TABLE, out: Out = None) -> None:
        _run((name,), quick=quick, shape=shape, out=out)

    command.__doc__ = f"Run the `{name}` benchmark."
    app.command(name)(command)


for _name in registry.names():
    _add(_name)


@app.command("all")
def everything(*, quick: Quick = False, shape: Shape = Format.TABLE, out: Out = None) -> None:
    """Run them all, one after the other (JSON: one object a line)."""
    _run(registry.names(), quick=quick, shape=shape, out=out)


@app.command("list")
def listing(*, shape: Shape = Format.TABLE) -> None:
    """Say what can be measured."""
    benches = [registry.bench(name) for name in registry.names()]
    if shape is Format.JSON:
        import json  # noqa: PLC0415 - only on this path

        typer.echo(json.dumps({bench.name: bench.title for bench in benches}))
        return
    for bench in benches:
        typer.echo(f"{bench.name:10} {bench.title}")
