"""``lichen data check``: recordings and window sets against a task. ``lichen-lab`` adds the data sets."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lichen.commands import data_check, data_check_table
from lichen.data_import.cli import import_data
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.settings.load import load_toml

app = typer.Typer(
    no_args_is_help=True, help="Import, check and cut recordings; get data sets.", add_completion=False
)


app.command("import")(import_data)


@app.callback()
def data() -> None:
    """Import, check and cut recordings; get data sets."""


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(help="recordings or window sets, or folders of them")],
    task: Annotated[Path, typer.Option(help="task.toml to compare them with")],
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Compare recordings with a task: names, classes, times, units, gaps.

    Exit status 65 if something is wrong; warnings alone are no error. docs/data-check.md lists the findings.
    """
    chosen = data_check.require_windows(load_toml(Task, task, named_by="--task"), "lichen data check")
    every = [data_check.checked(chosen, file) for file in data_check.files_of(paths)]
    report = data_check_table.report(chosen, every, data_check.across(chosen, every))
    if output_format is Format.JSON:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        typer.echo("\n".join(data_check_table.lines(report)))
    raise typer.Exit(exit_codes.OK if report["sound"] else exit_codes.DATAERR)
