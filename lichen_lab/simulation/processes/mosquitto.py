"""Mosquitto for trials: its path, and a configuration with persistence."""

import getpass
import shutil
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured

_PLACES: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin"


def path() -> str:
    """Path of the broker.

    Raises:
        Misconfigured: it is not installed.
    """
    found = shutil.which("mosquitto", path=_PLACES)
    if found is None:
        raise Misconfigured("mosquitto is not installed: apt-get install mosquitto")
    return found


def command(folder: Path, host: str, port: int) -> list[str]:
    """Write a configuration below ``folder`` and return the command that starts the broker with it.

    Raises:
        Misconfigured: it is not installed.
    """
    program = path()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} {host}\n"
        "allow_anonymous true\n"
        "persistence true\n"
        f"persistence_location {folder}/\n"
        # SIGKILL loses only messages since the last save
        "autosave_interval 1\n"
        "max_queued_messages 0\n"
        "max_queued_bytes 67108864\n"
        "max_packet_size 1048576\n"
        # the packaged service changes its user; a trial keeps its own
        f"user {getpass.getuser()}\n"
    )
    return [program, "-c", str(config)]
