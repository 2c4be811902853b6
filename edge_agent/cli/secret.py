"""``lichen agent secret``."""

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge_agent.identity import fleet_secret as secrets
from protocol.errors import Misconfigured, Transient
from runtime import exit_codes


def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="file of the secret; an existing one is kept")],
    *,
    output: Annotated[
        Literal["table", "json"], typer.Option("--format", help="table for people, or json")
    ] = "table",
) -> None:
    """Make the secret that all devices of a fleet share and the coordinator must not have. Once a fleet.

    Give it to each device with lichen agent enroll --fleet-secret. An existing FILE is kept. The printed
    fingerprint identifies the secret and reveals nothing of it; lichen agent check shows it, too.
    """
    try:
        made = not os.path.lexists(file)  # and no error where the folder is closed to us: that comes next
        shown = secrets.print_of(secrets.make(file))
    except (Misconfigured, Transient) as error:
        if output == "json":
            typer.echo(json.dumps({"error": str(error)}))
        typer.echo(f"lichen agent secret: {error}", err=True)
        full = isinstance(error, Transient)
        raise typer.Exit(exit_codes.TEMPFAIL if full else exit_codes.CONFIG) from None
    if output == "json":
        typer.echo(json.dumps({"file": str(file), "made": made, "print": shown}))
        return
    typer.echo(f"{file} {'holds a new secret' if made else 'was there already'}; its print is {shown}.")
    typer.echo(
        "Give it to each device by hand (lichen agent enroll --fleet-secret), never to the coordinator."
    )
