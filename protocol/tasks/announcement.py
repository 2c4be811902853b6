"""The announcement of a task: readable for older and newer releases than the coordinator's."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from protocol.base import Wire, first_fault
from protocol.errors import Reason, Refused
from protocol.tasks.features import FeatureName, needed, unknown
from protocol.tasks.task import Task

MAX_TASK_TEXT: Final = 120 * 1024
MAX_SIGNED_TASK_BYTES: Final = 48 * 1024
"""Mostly roots, 105 bytes each."""
MAX_ANNOUNCED_BYTES: Final = 72 * 1024
"""Maximum size without the signature; with it, ``messages.MAX_MESSAGE_BYTES`` must hold."""
MAX_SIGNED_OFFER_BYTES: Final = 8192
MAX_NEXT_ROOTS: Final = 256
"""Maximum number of roots after the first in a task or a pointer."""
_ITS_OWN: Final[Mapping[str, bool | set[str]]] = {
    "robust": True,
    "aggregator": True,
    "downlink": True,
    "labelled": True,
    "rounds": {"selection", "bandit", "answer_within_s", "patience", "gain"},
}
"""Keys that no device reads: unknown words in them are no reason to refuse the task."""
_JSON: Final[dict[str, JsonValue]] = {"contentMediaType": "application/json"}


class TaskAnnouncement(Wire):
    """``b/task``, retained. A device that knows all of ``needs`` reads the task."""

    kind: Literal["task"] = "task"
    needs: Annotated[tuple[FeatureName, ...], Field(max_length=64)] = ()
    """Features that a device must support (``protocol.tasks.features``)."""
    task: Annotated[str, Field(min_length=2, max_length=MAX_TASK_TEXT, json_schema_extra=_JSON)]
    """The task as JSON text without default values; stored, compared and signed unchanged."""
    signed: Annotated[str, Field(max_length=MAX_SIGNED_TASK_BYTES)] | None = None
    """Task and needs, signed (``protocol.trust.signed_work``); absent if unsigned."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """The announcement of this task, without the keys that only the coordinator reads."""
        text = task.model_dump_json(exclude_defaults=True, exclude=_ITS_OWN)
        return cls(needs=needed(task), task=text)

    def read(self) -> Task:
        """The task; unknown keys are ignored.

        Raises:
            Refused: it needs unknown features, or cannot be read (the detail names the key); MALFORMED: its
                text is no JSON.
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
