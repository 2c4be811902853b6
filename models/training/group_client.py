"""Devices of a simulation that train at once, as one computation. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from models.contract import Blobs, Client, ClientContext, LocalResult, Tensors, WindowSet
from protocol.tasks.task import Task


@dataclass(frozen=True)
class GroupMember:
    """One device of a group: the arguments of :meth:`models.contract.Client.train`."""

    context: ClientContext
    windows: WindowSet
    private: Tensors


class GroupClient(Client, Protocol):
    """The client of a method whose devices can train at once (``MethodSpec.in_groups``).

    A device's result is that of :meth:`models.contract.Client.train`, but for the last bits of values: sums
    are rounded in another order. It depends on the group that the device is in, and on nothing else.
    """

    def group_trouble(self, task: Task) -> str:
        """Why no devices of a task can train at once, in words that name the key; empty: they can."""

    def train_group(self, members: Sequence[GroupMember], state: Blobs) -> list[LocalResult | None]:
        """Train several devices of one round from ``state``: the blobs of the route that all of them have.

        Returns:
            The members' results; None for one that has to be trained by itself.
        """
