"""Where the rounds of a simulation end: by the decision of a coordinator, on what one would know."""

from coordinator.aggregation import early_end
from coordinator.aggregation.reported_metrics import sound
from models import registry
from models.contract import Blobs, WindowSet
from protocol.tasks.task import Task


class EarlyEnd:
    """The early end of one training (``rounds.patience``, ``rounds.gain``).

    Args:
        task: what is trained.
        validation: windows of the coordinator's ``[evaluation]``; None: it has none, and the lengths of the
            versions' steps decide. Never the windows that the result is judged on.
    """

    def __init__(self, task: Task, validation: WindowSet | None) -> None:
        self._task = task
        self._validation = validation
        self._client = registry.method(task.method).client()
        self._history: list[dict[str, float]] = []

    def reason(self, before: Blobs | None, after: Blobs, held: Blobs) -> str:
        """Why the rounds end with a version; empty: they go on. To be called for each version, in order.

        A round without updates makes none.

        Args:
            before: exact values of the version before; None: this is the initial one.
            after: its exact values.
            held: its model as devices hold it.
        """
        if self._validation is not None:
            self._history.append(sound(self._client.evaluate(self._task, self._validation, held).metrics))
        elif before is not None:
            self._history.append(early_end.step(self._task, before, after))
        return early_end.reason(self._history, self._task.rounds)
