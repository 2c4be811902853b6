"""The announcement of a task: readable for releases that are older or newer than the coordinator's."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from protocol.base import Wire, first_fault
from protocol.errors import Reason, Refused
from protocol.tasks.features import FeatureName, needed, unknown
from protocol.tasks.task import Task

MAX_TASK_TEXT: Final = 120 * 1024
MAX_SIGNED_TASK_BYTES: Final = 48 * 1024
"""Most of it names roots, 105 bytes each."""
MAX_ANNOUNCED_BYTES: Final = 72 * 1024
"""Of an announcement without its signature: with it, it must stay below ``messages.MAX_MESSAGE_BYTES``."""
MAX_SIGNED_OFFER_BYTES: Final = 8192
MAX_NEXT_ROOTS: Final = 256
"""Roots after the first one that a task or a pointer names."""
_ITS_OWN: Final[Mapping[str, bool | set[str]]] = {
    "robust": True,
    "aggregator": True,
    "labelled": True,
    "rounds": {"selection", "bandit"},
}
"""Keys that no device reads: a word there that only a newer release knows is no reason to refuse the task."""
_JSON: Final[dict[str, JsonValue]] = {"contentMediaType": "application/json"}


class TaskAnnouncement(Wire):
    """``b/task``, retained. Who knows all of ``needs`` reads the task."""

    kind: Literal["task"] = "task"
    needs: Annotated[tuple[FeatureName, ...], Field(max_length=64)] = ()
    """Names of what a device must know to do the task (``protocol.tasks.features``)."""
    task: Annotated[str, Field(min_length=2, max_length=MAX_TASK_TEXT, json_schema_extra=_JSON)]
    """The task as the text of a JSON object, without keys that have their default: to be kept, compared and
    signed as it came."""
    signed: Annotated[str, Field(max_length=MAX_SIGNED_TASK_BYTES)] | None = None
    """Task and needs, signed (``protocol.trust.signed_work``); left out by who signs nothing."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """The announcement of this task, without what the coordinator alone goes by."""
        text = task.model_dump_json(exclude_defaults=True, exclude=_ITS_OWN)
        return cls(needs=needed(task), task=text)

    def read(self) -> Task:
        """The task; keys that this lichen does not know are ignored.

        Raises:
            Refused: it needs what this lichen does not know, or it cannot be read (the detail names its key);
                MALFORMED: its text is no JSON.
        """
        if names := unknown(self.needs):
            raise Refused(
                Reason.UNKNOWN_TASK,
                f"the task needs {', '.join(names)}, which this lichen does not know; upgrade it"[:500],
            )
        try:
            return Task.model_validate_json(self.task)
        except ValidationError as error:
            damaged = error.errors(include_url=False)[0]["type"] == "json_invalid"
            reason = Reason.MALFORMED if damaged else Reason.UNKNOWN_TASK
            raise Refused(reason, f"the task cannot be read: {first_fault(error)}") from None
