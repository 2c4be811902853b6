"""The coordinator's part of a guided round in a simulation: its labelled windows, and what it trains on them.

In a coordinator the worker does this, from the journal (:mod:`models.worker.update_views`); here it
happens in this
process, with the method's own trainer. A study can use :class:`Guide` without the rest of a simulation:
``views``, ``weigh``, a fold of its own, ``finish``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, cast

from coordinator.aggregation.round_fold import finish_seed
from models import registry
from models.aggregation.server_optimizer import model_of, rejoined
from models.contract import Blobs, Tensors, Update, WindowSet
from models.data import window_set
from models.guided import DeviceWeights, GuidedServer, ServerTrainer
from models.worker.update_views import finite
from protocol.errors import Misconfigured, Refused
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Guide:
    """What a guided method sees and trains at the coordinator.

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
            Misconfigured: labelled windows lack, are not used by the method, or do not fit the task.
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
                f"task {task.name!r}: method {task.method!r} learns from labelled windows at the "
                "coordinator, and there are none"
            )
        window_set.check(labelled, task, "the coordinator's labelled windows")
        known = window_set.select(labelled, labelled.y_B >= 0)
        if not len(known):
            raise Misconfigured(f"none of the coordinator's {len(labelled)} windows has a label")
        return cls(task, cast("GuidedServer", spec.server()), spec.trainer(), known, seed)

    def views(
        self, version: Blobs, updates: Iterable[Update]
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """What the labelled windows look like through each update, by device; and why others have no view.

        Args:
            version: that the updates start from.
            updates: one is held at a time.
        """
        model = model_of(version)
        views: dict[str, Tensors] = {}
        refused: dict[str, Refused] = {}
        for update in updates:
            device = update.header.device
            try:
                views[device] = finite(self.trainer.view(self.task, self.labelled, model, update))
            except Refused as why:
                refused[device] = why
        return views, refused

    def weigh(self, views: Mapping[str, Tensors]) -> DeviceWeights:
        """The round's weights."""
        return self.server.weigh(self.task, views)

    def finish(self, round_: int, version: Blobs) -> tuple[Blobs, dict[str, float]]:
        """The version that is published, of what fold and optimizer made; and metrics of the training."""
        seed = finish_seed(self.task.model_copy(update={"seed": self.seed}), round_)  # as a coordinator's
        model, metrics = self.trainer.finish(self.task, round_, seed, self.labelled, model_of(version))
        return rejoined(model, version), metrics
