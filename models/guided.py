"""What a ``guided`` method is besides: the coordinator looks at all updates before it folds any. Torch-free.

A round of such a method: the worker looks at one update after the other through the labelled windows
(:meth:`ServerTrainer.view`), :meth:`GuidedServer.weigh` makes weights of what it saw, the journal is read
again and folded by them, and the worker finishes the version on the labelled windows. Nothing holds two
updates at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from models.contract import Blobs, Fold, Server, Tensors, Update, WindowSet
from protocol.tasks.task import Task


@dataclass(frozen=True)
class DeviceWeights:
    """What the coordinator made of the devices of a round, for the fold and for the operator. JSON-able.

    Attributes:
        weights: part of the model (a blob name) -> device -> share of that part's fold; each part's sum to 1.
            A device without the part is not in it.
        similarity: part -> device -> device -> similarity, -1 to 1; symmetric, ones on the diagonal.
        warnings: in words, for the operator: a group that is pushed out.
    """

    weights: Mapping[str, Mapping[str, float]]
    similarity: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class GuidedServer(Server, Protocol):
    """The coordinator's half of a method that is ``guided``: it sees all updates before it folds any."""

    def weigh(self, task: Task, views: Mapping[str, Tensors]) -> DeviceWeights:
        """Weights of devices from what :meth:`ServerTrainer.view` said of each. Pure; order does not matter.

        Args:
            task: its options.
            views: device -> its view.
        """

    def open_guided(self, task: Task, round_: int, state: Blobs, weighing: DeviceWeights) -> Fold:
        """Begin a round in which :attr:`UpdateHeader.device` decides the weight."""


class ServerTrainer(Protocol):
    """What a ``guided`` method trains at the coordinator; lives in ``trainer.py``, imports torch.

    Made by ``make_trainer()`` there, and run in the worker alone.
    """

    def view(self, task: Task, labelled: WindowSet, state: Blobs, update: Update) -> Tensors:
        """What the labelled windows look like through one device's model: small vectors by blob name.

        Raises:
            Refused: NON_FINITE: the model gives no finite numbers.
        """

    def finish(
        self, task: Task, round_: int, seed: int, labelled: WindowSet, state: Blobs
    ) -> tuple[Blobs, dict[str, float]]:
        """Train at the coordinator what devices do not: of a fold's result, the version, and metrics.

        Same seed, windows and state: the same bytes.
        """
