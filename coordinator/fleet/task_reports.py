"""What became of a fleet's further tasks, as the process that runs them reports it in the main task's tables.

A task that could not start has no tables of its own that could say why.
"""

import json
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import ValidationError

from coordinator.storage.database import Database
from protocol.base import Wire

META: Final = "further_tasks"
"""The key in the table ``meta``."""
MAX_WHY: Final = 1000
"""Characters of an error that are kept."""
State = Literal["starting", "running", "done", "failed", "ending"]


class TaskReport(Wire):
    """One further task.

    Attributes:
        state: ``done``: its rounds are over, but it still serves. ``ending``: it is not in the file any more,
            and its announcements are being cleared.
        why: of ``failed``, the error.
        since: Unix seconds.
        again: when it is tried again, Unix seconds.
    """

    state: State
    why: str = ""
    since: float = 0.0
    again: float | None = None


def encode_reports(reports: Mapping[str, TaskReport]) -> str:
    """The value in ``meta``."""
    return json.dumps({name: one.model_dump(mode="json") for name, one in sorted(reports.items())})


def read_reports(store: Database) -> dict[str, TaskReport]:
    """The reports by task; empty if there are none, or if another release wrote them."""
    try:
        found = json.loads(store.get_meta(META) or "{}")
        return {name: TaskReport.model_validate(one) for name, one in found.items()}
    except (ValueError, AttributeError, ValidationError):
        return {}
