"""``lichen audit``: list and verify the log of operators' actions. Works with and without a coordinator."""

import datetime as dt
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinator.audit.chain import AuditHead
from coordinator.audit.log import read_log, verify_log
from coordinator.cli.options import Config, TaskName, read_settings
from protocol.errors import Reason, Refused
from runtime.cli import Format, FormatOption, fail, print_result
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Show who did what, and check that nobody changed it."
)


@app.command("list")
def list_(
    config: Config,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="show the newest N rows")] = 100,
    *,
    task: TaskName = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Show the newest rows of the log: each action when it begins, and its outcome when it is over.

    The fleet has one log; --task shows the rows about one further task.
    """
    settings = read_settings(config, task)
    main = settings.main
    with run_as_owner(main.state_dir):
        found = read_log(main.location, last=last if task is None else None)
    if task is not None:
        found = [one for one in found if one.task == task][-last:]
    if fmt is Format.JSON:
        typer.echo(json.dumps({"rows": [one.model_dump() for one in found]}))
        return
    table = Table("row", "when (UTC)", "who", "signed in by", "action", "target", "outcome")
    for one in found:
        when = dt.datetime.fromtimestamp(one.wall, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        outcome = one.outcome if one.of is None else f"{one.outcome} (of row {one.of})"
        target = one.target if one.task is None else f"{one.target} (task {one.task})".lstrip()
        words = (f"{one.who} ({one.role})", one.how, one.action, target, outcome)
        table.add_row(str(one.seq), when, *map(escape, words))
    Console().print(table)


@app.command()
def verify(
    config: Config,
    head: Annotated[
        list[str] | None,
        typer.Option(help="NUMBER:DIGEST of an earlier call, kept elsewhere; repeatable", show_default=False),
    ] = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Check the chain of the log, and name the first row that was changed or removed.

    Prints the number and digest of the newest row: keep them on another machine for --head, which shows if
    the whole log was written anew. Exit status 65: a row was changed or removed.
    """
    settings, heads = read_settings(config, None), tuple(AuditHead.read(one, "--head") for one in head or [])
    with run_as_owner(settings.state_dir):
        found = verify_log(settings.location, heads)
    end = None if found.head is None else str(found.head)
    if found.row is not None:
        error = Refused(Reason.UNTRUSTED, found.why)
        fail("lichen audit", error, fmt, sound=False, row=found.row, head=end)
    rows = 0 if found.head is None else found.head.seq
    words = (
        "no operator has acted yet" if end is None else f"{rows} rows, none changed or removed\nhead {end}"
    )
    print_result(fmt, {"sound": True, "rows": rows, "head": end}, words)
