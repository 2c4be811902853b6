"""Which simulated devices take part in a round, by the task's selection policy: the coordinator's own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from coordinator.selection.policies import PastRound, Policy, SelectionInput, policy
from models import registry
from models.contract import Update, blob_of
from protocol.tasks.task import Task

_PURPOSE = 107


@dataclass
class Choice:
    """Chooses, and remembers what came of it.

    What a device has data for, and what its route is, its last update says: nothing before the first.

    Attributes:
        task: with its ``rounds``.
        devices: names of all.
        trainers: of those that train.
        seed: of the simulation.
    """

    task: Task
    devices: Sequence[str]
    trainers: Sequence[str]
    seed: int
    _past: list[PastRound] = field(default_factory=list)
    _losses: dict[str, float] = field(default_factory=dict)
    _moved: dict[str, Sequence[str]] = field(default_factory=dict)
    _counts: dict[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    _routes: dict[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _policy(self) -> Policy:
        return policy(self.task.rounds.selection)

    def of(self, round_: int) -> tuple[str, ...]:
        """Sorted names.

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
            history=tuple(self._past[-back:]) if back else (),
        )
        return self._policy.choose(draw).devices

    def hear(self, device: str, update: Update) -> None:
        """Told an update of this round that counted."""
        header, names = update.header, tuple(sorted({blob_of(tensor) for tensor in update.tensors}))
        here = {name: (round(header.samples * (1.0 - share)),) for name, share in header.missing.items()}
        needs_labels = registry.method(self.task.method).needs_labels
        self._counts[device], self._routes[device] = header.counts if needs_labels else here, names
        self._moved[device] = names
        if "loss" in header.metrics:
            self._losses[device] = header.metrics["loss"]

    def close(self, round_: int, selected: Iterable[str]) -> None:
        """Told that a round is over, and who took part."""
        self._past.append(PastRound(round_, frozenset(selected), self._losses, self._moved))
        self._losses, self._moved = {}, {}
