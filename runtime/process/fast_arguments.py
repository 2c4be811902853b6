"""What a daemon is started with, read without a library: ``--config FILE``, and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LONG: Final = "--config"
_SHORT: Final = "-c"


def config_argument(daemon: str, words: Sequence[str]) -> Path | None:
    """The file that the words name, else the one in ``/etc/lichen``.

    Args:
        daemon: its name, as of its file.
        words: of the command line, behind the command.

    Returns:
        None where they say something else, or nothing right: that is for whoever can explain it.
    """
    match [*words]:
        case []:
            return Path(f"/etc/lichen/{daemon}.toml")
        case [option, file] if option in {_LONG, _SHORT} and file:
            return Path(file)
        case [word] if word.startswith(f"{_LONG}=") and word != f"{_LONG}=":
            return Path(word.removeprefix(f"{_LONG}="))
    return None
