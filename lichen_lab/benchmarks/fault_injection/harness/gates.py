"""Holds a real process at a step until the trial has injected its fault there.

A step passes a gate by name. If ``<folder>/<name>.hold`` exists, it writes its process id to ``<name>.at``
and waits until the hold is removed. The folder is named by an environment variable, which a daemon's children
inherit; without the variable a gate does nothing.
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
        at.write_text(str(os.getpid()))
        time.sleep(_LOOK_S)


class StepGates:
    """The trial's side.

    Args:
        folder: created if missing.
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

    def process(self, name: str) -> int | None:
        """The process that has reached the gate last."""
        file = self.folder / f"{name}.at"
        text = file.read_text() if file.exists() else ""
        return int(text) if text else None
