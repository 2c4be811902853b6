"""Interfaces of a ``guided`` method: the coordinator views all updates before it folds any. Torch-free.

A guided round: the worker computes a view of each update on the labelled windows
(:meth:`ServerTrainer.view`), :meth:`GuidedServer.weigh` turns the views into weights, the journal is folded
by these weights, and the worker trains the version on the labelled windows. At most one update is in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from models.contract import Blobs, Fold, Server, Tensors, Update, WindowSet
from protocol.tasks.task import Task


@dataclass(frozen=True)
class DeviceWeights:
    """Weights of a round's devices, for the fold and the operator. JSON-able.

    Attributes:
        weights: part of the model (a blob name) -> device -> share of that part's fold; shares sum to 1.
            Devices without the part are absent.
        similarity: part -> device -> device -> similarity, -1 to 1; symmetric, ones on the diagonal.
        warnings: for the operator, such as a group with little weight.
    """

    weights: Mapping[str, Mapping[str, float]]
    similarity: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class GuidedServer(Server, Protocol):
    """The coordinator's half of a method that is ``guided``: it weighs all updates before it folds any."""

    def weigh(self, task: Task, views: Mapping[str, Tensors]) -> DeviceWeights:
        """Weights of devices from their views (:meth:`ServerTrainer.view`). Pure; order does not matter.

        Args:
            task: its options.
            views: device -> its view.
        """

    def open_guided(self, task: Task, round_: int, state: Blobs, weighing: DeviceWeights) -> Fold:
        """Begin a round with weights by :attr:`UpdateHeader.device`."""


class ServerTrainer(Protocol):
    """The training of a ``guided`` method at the coordinator; lives in ``trainer.py``, imports torch.

    Made by ``make_trainer()`` there; runs only in the worker.
    """

    def view(self, task: Task, labelled: WindowSet, state: Blobs, update: Update) -> Tensors:
        """Summarise the labelled windows' features under one device's model: small vectors by blob name.

        Raises:
            Refused: NON_FINITE: the model gives no finite numbers.
        """

    def finish(
        self, task: Task, round_: int, seed: int, labelled: WindowSet, state: Blobs
    ) -> tuple[Blobs, dict[str, float]]:
        """Train the parts that devices do not; return the version, and metrics.

        Equal seeds, windows and states give equal bytes.
        """
