"""A device of a baseline: its windows, training and predictions. Imports torch."""

import torch
from torch import Tensor
from torch.nn.functional import softmax
from torch.nn.utils import parameters_to_vector

from lichen_lab.benchmarks.studies.disentafl.baselines import distil
from lichen_lab.benchmarks.studies.disentafl.baselines.network import BaselineNetwork
from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import Blocks
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice
from models.contract import FloatArray
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.local_training import objective
from models.methods.disentafl.network.batch import SupernetBatch
from models.training.local import batches, learning_rate, start_deterministic
from protocol.tasks.task import Target, Task


class BaselineDevice:
    """A device with its network."""

    def __init__(
        self, member: TargetDevice, task: Task, network: BaselineNetwork, config: DisentAflConfig
    ) -> None:
        self.member, self.task, self.network, self.config = member, task, network, config
        self.train_on = SupernetBatch.of(task, network, member.train)
        self.test_on = SupernetBatch.of(task, network, member.test)
        self.blocks = network.blocks()
        self.rows: distil.Rows = {}
        self.adam = self._adam()

    def _adam(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            self.network.parameters(), self.config.lr, weight_decay=self.config.weight_decay, fused=True
        )

    def take(self, blocks: Blocks) -> None:
        """Copy these blocks into the network."""
        with torch.no_grad():
            for name, w_N in blocks.items():
                block = self.blocks[name]
                for parameter, part_N in zip(
                    block, torch.split(w_N, [p.numel() for p in block]), strict=True
                ):
                    parameter.copy_(part_N.view_as(parameter))

    def held(self) -> Blocks:
        """The network's current blocks."""
        return {name: parameters_to_vector(block).detach() for name, block in self.blocks.items()}

    def train(self, round_: int, seed: int, weight: float, *, keep_adam: bool) -> distil.Sums:
        """Train one round; returns sums of the features of the last epoch.

        Args:
            round_: from 1; determines the learning rate.
            seed: of the order of windows.
            weight: of the distillation.
            keep_adam: keep Adam's moments of the last round.
        """
        order = start_deterministic(seed)
        if not keep_adam:
            self.adam = self._adam()
        self.adam.param_groups[0]["lr"] = learning_rate(self.config.lr, self.config.lr_decay, 0.0, round_)
        sums: distil.Sums = {}
        for epoch in range(self.config.epochs):
            for index_B in batches(len(self.train_on), self.config.batch, order):
                batch = self.train_on.at(index_B)
                seen = self.network(batch.present_BM, *batch.x)
                rows = {segment: self._rows(segment, batch) for segment in seen.z}
                targets = self.network.targets
                loss = torch.stack(
                    [objective(t, seen.made[t.name], batch.truth[t.name]) for t in targets]
                ).mean()
                if self.rows:
                    loss = loss + weight * distil.loss(seen.z, rows, self.rows)
                self.adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.adam.step()
                if epoch == self.config.epochs - 1:
                    distil.add(sums, seen.z, rows, {s: self._row_count(s) for s in seen.z})
        return sums

    def _classes(self, segment: str) -> Target | None:
        """The classification target whose classes are the segment's rows, if any."""
        return next((t for t in self.network.targets if t.labels and segment.endswith(f".{t.name}")), None)

    def _row_count(self, segment: str) -> int:
        target = self._classes(segment)
        return 1 if target is None else len(target.labels)

    def _rows(self, segment: str, batch: SupernetBatch) -> Tensor:
        target = self._classes(segment)
        if target is None:
            return torch.zeros(len(batch.present_BM), dtype=torch.int64)
        truth = batch.truth[target.name]
        return truth.y.where(truth.labelled_B, -1)

    def outputs(self) -> dict[str, FloatArray]:
        """Predictions on the test windows by target, in raw units."""
        with torch.no_grad():
            made = self.network(self.test_on.present_BM, *self.test_on.x).made
        return {target.name: self._raw(target, made[target.name]) for target in self.network.targets}

    def _raw(self, target: Target, made: Tensor) -> FloatArray:
        if target.labels:
            return softmax(made, dim=1).numpy()
        if target.modality is None:
            return (made[:, 0] * target.scale + target.offset).numpy()
        modality = self.task.modality(target.modality)
        return (made * modality.scale + modality.offset).numpy()
