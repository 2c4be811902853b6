"""``lichen agent label``: labels of stored windows from a command line; the running agent stores them."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.labels.local_client import ask
from edge_agent.labels.requests import SOCKET, read_request
from protocol.errors import LichenError
from runtime.cli import Format, FormatOption, fail, print_result

app = typer.Typer(no_args_is_help=True, help="Label the windows that this device stores.")
_DAY_S = 86400.0
Window = Annotated[str, typer.Argument(metavar="WINDOW", help="a name that `list` shows")]


@app.command("list")
def list_(
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    count: Annotated[int, typer.Option(min=1, max=20, help="how many windows")] = 10,
    *,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="the newest windows, instead of those whose labels are worth most"),
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List windows to label: those whose labels are worth most, and why; or the newest ones."""
    found = _asked((config, task_name), {"do": "windows" if newest else "propose", "count": count}, output)
    if output is Format.JSON:
        typer.echo(json.dumps(found))
    else:
        _show(found, newest=newest)


@app.command("set")
def set_(
    window: Window,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="a class of the task")],
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Label a window. It is on the disk when this command says so.

    Exit status 65: the window was dropped, or the task has no such class; 75: the disk does not take it now,
    or the agent does not run.
    """
    found = _asked(
        (config, task_name), {"do": "label", "window": window, "label": label, "by": "command"}, output
    )
    print_result(
        output, found, f"{found['window']}: {found['label']} (before: {found['before'] or 'no label'})"
    )


@app.command()
def undo(
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    window: Annotated[str | None, typer.Option(help="only if the last label is that of this window")] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take the last label back, until the next round starts to train. Exit status 65: there is none."""
    found = _asked((config, task_name), {"do": "undo", "window": window}, output)
    print_result(
        output,
        found,
        f"{found['window']}: {found['label'] or 'no label'} (before: {found['before'] or 'no label'})",
    )


@app.command()
def skip(
    window: Window,
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Do not propose a window again while the agent runs."""
    found = _asked((config, task_name), {"do": "skip", "window": window}, output)
    print_result(output, found, f"{found['window']} is not proposed again")


def _asked(where: tuple[Path, str | None], request: dict[str, Any], output: Format) -> dict[str, Any]:
    try:
        return ask(read_task_settings(*where).cache_dir / SOCKET, read_request(json.dumps(request).encode()))
    except LichenError as error:
        fail("lichen agent label", error, output)


def _time(at: float | None) -> str:
    """The start of a window: local time; or seconds if it is no time of day, as in a replayed recording."""
    if at is None:
        return ""
    try:
        return (
            datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds") if at > _DAY_S else f"{at:g} s"
        )
    except (OverflowError, ValueError, OSError):
        return f"{at:g} s"


def _show(found: dict[str, Any], *, newest: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - only the table needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(f"task {found['task']}: {', '.join(found['labels'])}"), box=None)
    columns = ("window", "when", "label", "prediction") + (() if newest else ("why",))
    for column in columns:
        table.add_column(column)
    for one in found["windows"]:
        said = one["prediction"]
        cells = [
            one["window"],
            _time(one["at"]),
            one["label"] or "",
            "" if said is None else f"{said['label']} {said['confidence']:.0%}",
            *([] if newest else [one["reason"]]),
        ]
        table.add_row(*map(Text, cells))
    console = Console()
    console.print(table)
    if found["no_prediction"]:
        console.print(Text(f"no predictions: {found['no_prediction']}"))
