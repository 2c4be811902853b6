"""A run's end, for whoever asks it something."""

from dataclasses import dataclass
from typing import Any

from lichen_lab.benchmarks.studies.qqr.settings import QqrRun
from lichen_lab.simulation.data.access.split import DataSplit
from models.contract import Blobs, Client, WindowSet
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Trained:
    """A run's end.

    Attributes:
        spec: the run.
        task: the run's.
        client: the method's.
        state: the final one.
        test: the windows that versions were judged on.
        people: all test windows, with whose they are.
    """

    spec: QqrRun
    task: Task
    client: Client
    state: Blobs
    test: WindowSet
    people: DataSplit

    def accuracy(self, windows: WindowSet, **options: Any) -> float:
        """In %, with some of the method's options changed at inference."""
        return (
            100 * self.client.evaluate(self.with_options(**options), windows, self.state).metrics["accuracy"]
        )

    def with_options(self, **options: Any) -> Task:
        """The task with some of the method's options changed."""
        return self.task.model_copy(update={"config": {**self.task.config, **options}})
