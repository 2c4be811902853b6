"""The coordinator's part of a guided round in a simulation: its labelled windows and its training.

A coordinator has its worker do this from the journal (:mod:`models.worker.update_views`); here it happens in
this process. A study can use :class:`Guide` without the rest of a simulation: ``weigh``, a fold of its own,
``finish``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.aggregation.round_fold import finish_seed
from models import registry
from models.aggregation.server_optimizer import model_of, rejoined
from models.contract import Blobs, WindowSet
from models.data import window_set
from models.guided import DeviceWeights, GuidedServer, ServerTrainer
from models.worker.update_views import ReadableUpdate, view_updates
from protocol.errors import Misconfigured
from protocol.frames.frame import Limits
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Guide:
    """The coordinator's windows and training for a guided method.

    Attributes:
        task: names and options.
        server: the method's half in NumPy.
        trainer: its half in torch.
        labelled: the coordinator's windows.
        seed: of the simulation; its training depends on it and on the round.
    """

    task: Task
    server: GuidedServer
    trainer: ServerTrainer
    labelled: WindowSet
    seed: int

    @classmethod
    def of(cls, task: Task, labelled: WindowSet | None, seed: int) -> Self | None:
        """The guide of a task's method; None for a method that is not guided.

        Raises:
            Misconfigured: labelled windows are missing, are not used by the method, or do not fit the task.
        """
        spec = registry.method(task.method)
        if not spec.guided:
            if labelled is not None:
                raise Misconfigured(
                    f"task {task.name!r}: method {task.method!r} learns nothing at the coordinator; leave "
                    "its labelled windows out"
                )
            return None
        if labelled is None:
            raise Misconfigured(
                f"task {task.name!r}: method {task.method!r} needs labelled windows at the "
                "coordinator, and none are given"
            )
        window_set.check(labelled, task, "the coordinator's labelled windows")
        known = window_set.select(labelled, labelled.y_B >= 0)
        if not len(known):
            raise Misconfigured(f"none of the coordinator's {len(labelled)} windows has a label")
        return cls(task, cast("GuidedServer", spec.server()), spec.trainer(), known, seed)

    def weigh(self, model: Blobs, updates: Sequence[ReadableUpdate], limits: Limits) -> DeviceWeights:
        """The round's weights, from a view of each update through the labelled windows.

        Args:
            model: from which the updates start.
            updates: in memory one at a time.
            limits: of an update's resources.

        Raises:
            UnusableUpdates: some have no view.
        """
        views, refused = view_updates(self.trainer, self.task, self.labelled, model, updates, limits)
        if refused:
            raise UnusableUpdates(refused)
        return self.server.weigh(self.task, views)

    def finish(self, round_: int, version: Blobs) -> tuple[Blobs, dict[str, float]]:
        """The version to publish, trained from fold's and optimizer's result; metrics of the training."""
        seed = finish_seed(self.task.model_copy(update={"seed": self.seed}), round_)  # as the coordinator's
        model, metrics = self.trainer.finish(self.task, round_, seed, self.labelled, model_of(version))
        return rejoined(model, version), metrics
