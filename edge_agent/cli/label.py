"""``lichen agent label``: labels of stored windows from a command line; the running agent stores them."""

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config
from edge_agent.config.agent import read
from edge_agent.labels.local_client import ask
from edge_agent.labels.requests import (
    SOCKET,
    GiveLabel,
    ListWindows,
    Propose,
    Request,
    SkipWindow,
    UndoLabel,
)
from protocol.errors import LichenError, Misconfigured, Refused, Transient
from runtime import exit_codes
from runtime.cli import Format, FormatOption, fail, print_result

app = typer.Typer(no_args_is_help=True, help="Label the windows that this device stores.")
Window = Annotated[str, typer.Argument(metavar="WINDOW", help="a name that `list` shows")]
_MAX_NAME = 60


@app.command("list")
def list_(
    config: Config = DEFAULT_CONFIG,
    count: Annotated[int, typer.Option(min=1, max=100, help="how many windows")] = 10,
    *,
    newest: Annotated[
        bool, typer.Option("--newest", help="the newest windows, instead of those whose labels are worth most")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """List windows to label: those whose labels are worth most, and why; or the newest ones."""
    request = ListWindows(do="windows", count=count) if newest else Propose(do="propose", count=min(count, 20))
    found = _asked(config, request, output)
    if output is Format.JSON:
        typer.echo(json.dumps(found))
    else:
        _show(found, newest=newest)


@app.command("set")
def set_(
    window: Window,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="a class of the task")],
    config: Config = DEFAULT_CONFIG,
    output: FormatOption = Format.TABLE,
) -> None:
    """Label a window. It is on the disk when this command says so.

    Exit status 65: the window was dropped, or the task has no such class; 75: the disk does not take it now, or
    the agent does not run.
    """
    words = Refused_words(window, label)
    if words:
        fail("lichen agent label", words, output, exit_codes.DATAERR)
    found = _asked(config, GiveLabel(do="label", window=window, label=label, by="command"), output)
    print_result(output, found, f"{found['window']}: {found['label']} (before: {found['before'] or 'no label'})")


@app.command()
def undo(
    config: Config = DEFAULT_CONFIG,
    window: Annotated[
        str | None, typer.Option(help="only if the last label is that of this window")
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take the last label back, until the next round starts to train. Exit status 65: there is none."""
    found = _asked(config, UndoLabel(do="undo", window=None if window is None else window[:_MAX_NAME]), output)
    print_result(output, found, f"{found['window']}: {found['before'] or 'no label'} again (was {found['label']})")


@app.command()
def skip(window: Window, config: Config = DEFAULT_CONFIG, output: FormatOption = Format.TABLE) -> None:
    """Do not propose a window again while the agent runs."""
    found = _asked(config, SkipWindow(do="skip", window=window[:_MAX_NAME]), output)
    print_result(output, found, f"{found['window']} is not proposed again")


def Refused_words(window: str, label: str) -> str:  # noqa: N802
    return ""


def _asked(config: Any, request: Request, output: Format) -> dict[str, Any]:
    try:
        return ask(read(config).cache_dir / SOCKET, request)
    except LichenError as error:
        fail("lichen agent label", error, output)


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
            "" if one["at"] is None else datetime.fromtimestamp(one["at"]).astimezone().isoformat(" ", "seconds"),
            one["label"] or "",
            "" if said is None else f"{said['label']} {said['confidence']:.0%}",
            *([] if newest else [one["reason"]]),
        ]
        table.add_row(*map(Text, cells))
    console = Console()
    console.print(table)
    if found["no_prediction"]:
        console.print(Text(f"no predictions: {found['no_prediction']}"))
