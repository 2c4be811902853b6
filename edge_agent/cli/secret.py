"""``lichen agent secret``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.identity import fleet_secret as secrets
from protocol.errors import Misconfigured, Transient
from runtime.cli import Format, FormatOption, fail, print_result


def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="file of the secret; an existing one is kept")],
    *,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make the secret that all devices of a fleet share and the coordinator must not have. Once per fleet.

    Give it to each device with lichen agent enroll --fleet-secret. An existing FILE is kept. The printed
    fingerprint identifies the secret and reveals nothing of it; lichen agent check shows it, too.
    """
    try:
        made = not os.path.lexists(file)  # lexists: if the folder denies access, the next line reports it
        shown = secrets.fingerprint(secrets.make(file))
    except (Misconfigured, Transient) as error:
        fail("lichen agent secret", error, output)
    print_result(
        output,
        {"file": str(file), "made": made, "print": shown},
        f"{file} {'holds a new secret' if made else 'already exists'}; its fingerprint is {shown}.\n"
        "Give it to each device by hand (lichen agent enroll --fleet-secret), never to the coordinator.",
    )
