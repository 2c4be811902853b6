"""The choice of a round's simulated devices, by the task's selection policy and the coordinator's code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from coordinator.selection.history import SelectionHistory
from coordinator.selection.poisson import policy_of
from coordinator.selection.policies import Policy, SelectionInput
from models import registry
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Task

_PURPOSE = 107


@dataclass
class Choice:
    """Chooses devices, and records the rounds' results.

    The modalities and the route of a device are known from its last update: before the first, nothing is.

    Attributes:
        task: with its ``rounds``.
        devices: names of all.
        trainers: of those that train.
        seed: of the simulation.
        history: of closed rounds.
    """

    task: Task
    devices: Sequence[str]
    trainers: Sequence[str]
    seed: int
    history: SelectionHistory = field(default_factory=SelectionHistory)
    _counts: dict[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    _routes: dict[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _policy(self) -> Policy:
        return policy_of(self.task)

    def of(self, round_: int) -> tuple[str, ...]:
        """Sorted names of a round's devices.

        Raises:
            Misconfigured: ``rounds.selection`` names no policy.
        """
        rounds, spec = self.task.rounds, registry.method(self.task.method)
        trains = spec.trains(spec.configure(self.task))
        back = self._policy.looks_back(rounds)
        draw = SelectionInput(
            {name: self._counts.get(name, {}) for name in self.devices},
            rounds.devices_per_round,
            int(np.random.SeedSequence([self.seed, round_, _PURPOSE]).generate_state(1)[0]),
            labels=self.task.labels if spec.needs_labels else (),
            needed=self.trainers if trains else (),
            rounds=rounds,
            routes=self._routes,
            history=self.history.past()[-back:] if back else (),
            experts=spec.experts,
        )
        return self._policy.choose(draw).devices

    def accept(self, round_: int, header: UpdateHeader, moved: Sequence[str]) -> None:
        """Record a folded update of a round, and the names of the blobs that it changed."""
        device = header.device
        present = {name: (round(header.samples * (1.0 - share)),) for name, share in header.missing.items()}
        needs_labels = registry.method(self.task.method).needs_labels
        self._counts[device], self._routes[device] = header.counts if needs_labels else present, moved
        self.history.accept(round_, device, header.metrics.get("loss"), moved)
