"""``lichen round``: what a round was, from the coordinator's state folder alone."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coordinator.config.coordinator import load_settings
from coordinator.recovery.folder_owner import DATABASE
from coordinator.status.history import read
from coordinator.status.round_report import explained, lines
from runtime import exit_codes

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Explain which devices a round selected.")


class Format(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


@app.callback()
def rounds() -> None:
    """Make ``explain`` a word of its own."""


@app.command()
def explain(
    config: Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)],
    number: Annotated[
        int | None, typer.Option("--round", "-r", min=1, help="Number of the round; default: the newest.")
    ] = None,
    fmt: Annotated[
        Format, typer.Option("--format", help="A table for people, or one JSON object.")
    ] = Format.TABLE,
) -> None:
    """Show for each attempt of a round which devices were selected, why, who was next, and the outcome.

    Exit status 69: the round is not known here.
    """
    state_dir = load_settings(config).state_dir
    if not (state_dir / DATABASE).is_file():
        _unknown(f"{state_dir / DATABASE} is not there; has this coordinator ever run?", fmt)
    found = {one["round"]: one for one in read(state_dir)["rounds"]}
    wanted = max(found, default=0) if number is None else number
    if wanted not in found:
        there = f"known are {min(found)} to {max(found)}" if found else "none was opened yet"
        _unknown(f"round {wanted} is not in {state_dir / DATABASE}: {there}", fmt)
    told = explained(found[wanted])
    typer.echo(json.dumps(told) if fmt is Format.JSON else "\n".join(lines(told)))


def _unknown(words: str, fmt: Format) -> None:
    if fmt is Format.JSON:
        typer.echo(json.dumps({"error": words}))
    typer.echo(f"lichen round: {words}", err=True)
    raise typer.Exit(exit_codes.UNAVAILABLE)
