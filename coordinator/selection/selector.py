"""Answers ``Select``: asks the task's policy, with the facts of fleet and history that it needs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements
from coordinator.privacy.noise_secret import public_salt
from coordinator.round_machine.commands import Select
from coordinator.round_machine.events import RoundState, Rules
from coordinator.selection import history
from coordinator.selection.poisson import policy_of
from coordinator.selection.policies import Counts, Experts, SelectionInput
from coordinator.storage.database import Database
from models.registry import methods
from models.seeds import derive_round_seed
from protocol.cohort import threshold
from protocol.tasks.task import LABEL, Task

DELIVERED: Final = "delivered in an earlier attempt"
_LARGE: Final = 1000


@dataclass(frozen=True, slots=True)
class SelectedDevices:
    """The devices of an attempt.

    Attributes:
        policy: its name.
        devices: to be asked; sorted.
        why: of each of them, and of those that delivered already.
        passed: of some of the next candidates, why they were not selected.
        salt: of the round, for places (``protocol.cohort``).
        below: a threshold: other devices with a place below it are asked as well; empty: none are.
        looked_back: whether the policy reads the selections of earlier rounds.
    """

    policy: str
    devices: tuple[str, ...]
    why: dict[str, str]
    passed: dict[str, str]
    salt: str = ""
    below: str = ""
    looked_back: bool = False


@dataclass(eq=False, repr=False)
class DeviceSelector:
    """The selector of one task.

    Attributes:
        route: names of the blobs that a device may need.
        salt: of a task, its round and the digest of the base: for places (``protocol.cohort``).
    """

    task: Task
    rules: Rules
    roster: DeviceRegistry
    store: Database
    route: Callable[[str], tuple[str, ...]]
    salt: Callable[[Task, int, str], str] = public_salt

    def __post_init__(self) -> None:
        self._policy = policy_of(self.task)
        method = methods().get(self.task.method)
        self._experts: Experts = frozenset if method is None else method.experts

    async def choose(
        self, command: Select, able: Sequence[str], state: RoundState, terms: Requirements
    ) -> SelectedDevices:
        """Select among the devices that could be asked now.

        Raises:
            Transient: the history cannot be read now.
        """
        task, back = self.task, self._policy.looks_back(self.task.rounds)
        askable = [device for device in able if device not in state.delivered]
        key = task, command.round, state.manifest
        # with [privacy] it comes from a file
        salt = await asyncio.to_thread(self.salt, *key) if task.privacy else self.salt(*key)
        draw = SelectionInput(
            candidates={device: self._counts(device, terms) for device in askable},
            wanted=self._wanted(state),
            seed=derive_round_seed(task.seed, command.round, command.attempt),
            labels=(*task.labels, *(target.name for target in task.targets)) if terms.needs_labels else (),
            needed=self._needed(askable, state, terms),
            rounds=task.rounds,
            routes={device: self.route(device) for device in askable} if back else {},
            history=await asyncio.to_thread(history.read, self.store, command.round, back) if back else (),
            tried=frozenset(state.invited),
            salt=salt,
            experts=self._experts,
        )
        # A policy adds up thousands of rows, or computes thousands of places, so it runs in a thread.
        large = back or len(askable) > _LARGE
        made = await asyncio.to_thread(self._policy.choose, draw) if large else self._policy.choose(draw)
        why = {**dict.fromkeys(state.delivered, DELIVERED), **made.why}
        below = "" if made.below is None else threshold(made.below)
        return SelectedDevices(self._policy.name, made.devices, why, made.passed, salt, below, bool(back))

    def _wanted(self, state: RoundState) -> int | None:
        wanted = self.rules.devices_per_round
        return None if wanted is None else max(1, wanted - len(state.delivered))

    def _counts(self, device: str, terms: Requirements) -> Counts:
        """Windows per class of label, and then one cell for each further target that the device learns.

        If devices learn without labels: all windows that have the modality.
        """
        task, names = self.task, self.task.modality_names  # a device may claim any others
        if not terms.needs_labels:
            return {name: n for name, n in self.roster.windows_by_modality(device).items() if name in names}
        known = self.roster.get(device)
        learns = {LABEL} if known is None or known.state.targets is None else set(known.state.targets)
        more = tuple(int(target.name in learns) for target in task.targets)
        k = len(task.labels)
        return {
            name: (*(tuple(n[:k]) + (0,) * (k - len(n[:k]))), *more) if more else n[:k]
            for name, n in self.roster.counts(device).items()
            if name in names
        }

    def _needed(self, askable: Sequence[str], state: RoundState, terms: Requirements) -> frozenset[str]:
        """Devices of which the round needs one: those that train, unless one of them has delivered."""
        if not terms.needs_training or any(map(self.roster.trains, state.delivered.unsorted())):
            return frozenset()
        return frozenset(filter(self.roster.trains, askable))
