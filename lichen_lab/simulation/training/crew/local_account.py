"""A simulated device's account of privacy under ``[local_privacy]``, in memory."""

from dataclasses import replace
from typing import Final

from edge_agent.windows.store_file import grid_digest
from models import registry
from models.contract import LocalResult
from models.privacy.account import PREFIX
from models.privacy.device_account import DeviceAccount
from models.privacy.local.limits import excess, limits_of, with_training
from protocol.errors import Transient
from protocol.tasks.task import Task

EPSILON: Final = "epsilon"
EPSILON_OF_MOMENT: Final = "epsilon_moment"
"""Metrics of an update, as an agent sends them."""


class LocalAccount:
    """Decides and charges as an agent does (:mod:`edge_agent.storage.privacy_account`)."""

    def __init__(self) -> None:
        self._spent = DeviceAccount()

    def require_room(self, task: Task, windows: int) -> None:
        """Check the task's own limit, before a training on so many windows.

        Raises:
            Transient: one more update would exceed it.
        """
        if task.local_privacy is None:
            return
        config = registry.method(task.method).configure(task)
        after = with_training(self._spent, grid_digest(task), task, config, windows)
        if words := excess(task, after, limits_of(task)):
            raise Transient(words)

    def charged(self, task: Task, result: LocalResult) -> LocalResult:
        """The result without its charge, which is in the account now, and with the account in its metrics."""
        if (local := task.local_privacy) is None:
            return result
        self._spent = self._spent.after(grid_digest(task), task, result.private, noised=True)
        bounds = {
            EPSILON: self._spent.epsilon_of_window(local.delta),
            EPSILON_OF_MOMENT: self._spent.of_stretch().epsilon(local.delta),
        }
        private = {name: tensor for name, tensor in result.private.items() if not name.startswith(PREFIX)}
        return replace(result, private=private, metrics=result.metrics | bounds)
