"""Hold a real process at a step until the trial has done there what it came for.

A step passes a gate by name. Where ``<folder>/<name>.hold`` lies, it writes ``<name>.at`` and waits until the
hold is gone. The folder is named by an environment variable, so that a daemon's children find it too; without
the variable a gate is nothing.
"""

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "LICHEN_TRIAL_GATES"
_MOST_S: Final = 90.0
"""Longest hold, also if the trial has failed."""
_LOOK_S: Final = 0.01


def gate(name: str) -> None:
    """Pass, or wait while the trial holds this gate."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    hold, at = Path(folder) / f"{name}.hold", Path(folder) / f"{name}.at"
    deadline = time.monotonic() + _MOST_S
    while hold.exists() and time.monotonic() < deadline:
        at.touch()
        time.sleep(_LOOK_S)


class StepGates:
    """The trial's side.

    Args:
        folder: made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def hold(self, name: str) -> None:
        """Close a gate: processes that reach it wait."""
        (self.folder / f"{name}.hold").touch()

    def release(self, name: str) -> None:
        """Open a gate."""
        (self.folder / f"{name}.hold").unlink(missing_ok=True)

    def reached(self, name: str) -> bool:
        """Whether a process has reached the gate."""
        return (self.folder / f"{name}.at").exists()
