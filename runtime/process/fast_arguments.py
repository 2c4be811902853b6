"""Parses a daemon's arguments without a library: ``--config FILE`` and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LONG: Final = "--config"
_SHORT: Final = "-c"


def config_argument(daemon: str, arguments: Sequence[str]) -> Path | None:
    """The file given in the arguments, else the one in ``/etc/lichen``.

    Args:
        daemon: its name, which is also that of the file.
        arguments: of the command line, after the command.

    Returns:
        None for other or wrong arguments: the full parser explains them.
    """
    match [*arguments]:
        case []:
            return Path(f"/etc/lichen/{daemon}.toml")
        case [option, file] if option in {_LONG, _SHORT} and file:
            return Path(file)
        case [word] if word.startswith(f"{_LONG}=") and word != f"{_LONG}=":
            return Path(word.removeprefix(f"{_LONG}="))
    return None
