"""``lichen round``: explains a round, from the coordinator's state folder alone."""

from typing import Annotated

import typer

from coordinator.cli.options import Config, require_database
from coordinator.config.coordinator import load_settings
from coordinator.status.history import read
from coordinator.status.round_report import explained, lines
from runtime.cli import Format, FormatOption, fail, print_result

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Explain which devices a round selected.")


@app.callback()
def rounds() -> None:
    """Make ``explain`` a subcommand."""


@app.command()
def explain(
    config: Config,
    number: Annotated[
        int | None, typer.Option("--round", "-r", min=1, help="Number of the round; default: the newest.")
    ] = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Show for each attempt of a round which devices were selected, why, who was next, and the outcome.

    Exit status 69: the round is not known here.
    """
    location = load_settings(config).location
    require_database(location, "lichen round", fmt)
    found = {one["round"]: one for one in read(location)["rounds"]}
    wanted = max(found, default=0) if number is None else number
    if wanted not in found:
        there = f"known are {min(found)} to {max(found)}" if found else "none was opened yet"
        fail("lichen round", f"round {wanted} is not in {location.where}: {there}", fmt)
    told = explained(found[wanted])
    print_result(fmt, told, "\n".join(lines(told)))
