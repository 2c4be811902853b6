"""The agent's report in ``status.json``: the status of its parts, and the conditions that they wait for."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from edge_agent.ports import TaskLink
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.windows.workspace import EMPTY_STATUS
from runtime.waits import StatusPart, Wait

_ENDED: Final = "stopped with the agent"


class StatusReport:
    """The status of all parts.

    Args:
        device: its name.
        link: to the coordinator.
        parts: the others, in the order in which their waits are shown.
    """

    def __init__(self, device: str, link: TaskLink, parts: Sequence[StatusPart]) -> None:
        self._device = device
        self._link = link
        self._parts = parts

    def waits(self) -> list[Wait]:
        """All waits, the most urgent first."""
        link = self._link
        broker = Wait("broker", link.why, link.since, link.until, "the agent tries again")
        return [
            *([] if link.connected else [broker]),
            *(wait for part in self._parts for wait in part.waits()),
        ]

    def status(self) -> dict[str, Any]:
        """The status of all parts, as JSON values."""
        counters = self._link.counters
        found: dict[str, Any] = {
            "device": self._device,
            "link": self._link.why,
            "waits": [asdict(wait) for wait in self.waits()],
        }
        for part in self._parts:
            found |= part.status()
        return found | {
            "bytes_out": counters.bytes_out,
            "bytes_in": counters.bytes_in,
            "reconnects": counters.reconnects,
        }

    def last_status(self) -> dict[str, Any]:
        """The status at the agent's end: working parts are marked as stopped, faults stay as they were."""
        found = self.status()
        if self._link.connected:
            found["link"] = _ENDED
        if found["inference"] == "running":
            found["inference"] = _ENDED
        return found


class DataStatus(StatusPart):
    """The status of the training data.

    Args:
        tasks: knows the present task.
    """

    def __init__(self, tasks: CurrentTask) -> None:
        self._tasks = tasks

    def status(self) -> dict[str, Any]:
        """Of the present task; zeros if there is none."""
        work, now = self._tasks.workspace, self._tasks.readiness()
        return {
            "modalities": [] if work is None else list(work.modalities),
            "reads": list(now.profile.modalities),
            "learns": list(now.profile.targets) if work is not None and work.by and now.samples else [],
            **(dict(EMPTY_STATUS) if work is None else work.status()),
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for samples, if a problem keeps them from coming in."""
        work = self._tasks.workspace
        trouble = None if work is None else work.problem()
        if trouble is not None:
            yield Wait(trouble.kind, trouble.words, trouble.since, None, trouble.then)
