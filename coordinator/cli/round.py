"""``lichen round``: explain a round; hold, resume and end the rounds, with or without a coordinator."""

from typing import Annotated

import typer

from coordinator.actions import rounds
from coordinator.actions.answers import RoundsOrdered
from coordinator.audit.log import account
from coordinator.cli.options import Config, TaskName, read_settings, require_database
from coordinator.status.history import read_rounds
from coordinator.status.round_report import explained, lines
from runtime.cli import Format, FormatOption, fail, print_answer, print_result
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Explain which devices a round selected; hold, resume and end the rounds.",
)

Why = Annotated[str, typer.Option("--why", help="the reason, for the status and the audit log")]


@app.command()
def hold(config: Config, why: Why = "", *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Let no further round be opened; the open one goes on to its end. It stands until `resume`."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        before = rounds.hold(settings, account(), why)
    print_answer(fmt, RoundsOrdered.of("held", before))


@app.command()
def resume(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Let rounds be opened again after `hold`; after `end`, from the coordinator's next start on."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        before = rounds.resume(settings, account())
    print_answer(fmt, RoundsOrdered.of("open", before))


@app.command()
def end(config: Config, why: Why = "", *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """End the rounds: an open one closes with the updates that are here; the last version is exported."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        before = rounds.end(settings, account(), why)
    print_answer(fmt, RoundsOrdered.of("ended", before))


@app.command()
def explain(
    config: Config,
    number: Annotated[
        int | None, typer.Option("--round", "-r", min=1, help="Number of the round; default: the newest.")
    ] = None,
    *,
    task: TaskName = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Show for each attempt of a round which devices were selected, why, who was next, and the outcome.

    Of a secure round also the stage of each attempt, who was lost at which, and why a sum stayed closed.

    Exit status 69: the round is not known here.
    """
    settings = read_settings(config, task)
    location = settings.location
    require_database(location, "lichen round", fmt)
    found, known = read_rounds(location, number)
    if found is None:
        there = "none was opened yet" if known is None else f"known are {known[0]} to {known[1]}"
        fail("lichen round", f"round {number or 0} is not in {location.where}: {there}", fmt)
    told = explained(found)
    stages = [one["words"] for one in told["secure"]]
    result = {**told, "secure": stages[-1] if stages else None, "secure_attempts": told["secure"]}
    print_result(fmt, result, "\n".join(lines(told)))
