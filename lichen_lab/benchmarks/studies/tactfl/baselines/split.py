"""FedMSplit: each device, and the coordinator, gets a mean of its own of every block. Imports torch.

Chen and Zhang, FedMSplit: Correlation-Adaptive Federated Multi-Task Learning across Multimodal Split
Networks (KDD 2022). Its blocks are a modality's encoder and the head. There, all nodes of the graph have
labels; here the coordinator is the node that has them, and the others use confident predictions of their own
model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.baselines.loop import LabelledBaseline, LabelledRun, Local, Trained
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome, TactflSetting, UnlabelledFleet
from lichen_lab.benchmarks.studies.tactfl.shared import chosen
from lichen_lab.benchmarks.study.mixes import Mix, attention
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Tensors

_COORDINATOR: Final = ""
"""Its name among the nodes; no device has an empty one."""


@dataclass(frozen=True)
class FlatBlob:
    """One blob as a vector, and back.

    Attributes:
        like: the blob that gives names and shapes.
    """

    like: Tensors

    def vector(self, tensors: Tensors) -> Tensor:
        """``w_N``, in the order of names."""
        return torch.from_numpy(np.concatenate([tensors[name].reshape(-1) for name in sorted(self.like)]))

    def tensors(self, w_N: Tensor) -> Tensors:
        """The blob again."""
        names = sorted(self.like)
        parts = torch.split(w_N, [self.like[name].size for name in names])
        return {
            name: part.reshape(self.like[name].shape).numpy().copy()
            for name, part in zip(names, parts, strict=True)
        }


def mixed(start: Blobs, sent: Mapping[str, Trained], mix: Mix) -> dict[str, Blobs]:
    """Node -> its own mean of each block that it sent.

    Args:
        start: gives names and shapes of all blocks.
        sent: node -> its weight and the blocks that it has.
        mix: of the nodes that have a block.
    """
    made: dict[str, Blobs] = {node: {} for node in sent}
    for blob in dict.fromkeys(blob for _, blocks in sent.values() for blob in blocks):
        block, nodes = FlatBlob(start[blob]), [node for node, (_, blocks) in sent.items() if blob in blocks]
        weight_P = torch.tensor([sent[node][0] for node in nodes])
        w_PN = mix(torch.stack([block.vector(sent[node][1][blob]) for node in nodes]), weight_P)
        for node, w_N in zip(nodes, w_PN, strict=True):
            made[node][blob] = block.tensors(w_N)
    return made


class SplitRun(LabelledRun):
    """One run: as other baselines by pseudo-labels, but every device continues from a mean of its own."""

    def __init__(
        self, baseline: LabelledBaseline, fleet: UnlabelledFleet, setting: TactflSetting, seed: int
    ) -> None:
        super().__init__(baseline, fleet, setting, seed)
        self._devices = cast("Local", self.local)
        self._mix = attention(self.options["temperature"])
        self.own: dict[str, Blobs] = {}
        """Device -> the blocks from which it continues; what it lacks there is the coordinator's."""

    def round(self, round_: int) -> None:
        """See :meth:`LabelledRun.round`."""
        start, sent = model_of(self.state), {_COORDINATOR: (float(len(self.fleet.labelled)), self.model)}
        for member in chosen(self.fleet.members, self.setting, self.task.seed, round_):
            made = self._devices.train(member, {**start, **self.own.get(member.name, {})}, round_)
            if made is not None:
                sent[member.name] = made
        own = mixed(start, sent, self._mix)
        self._take(own.pop(_COORDINATOR))
        self._take(self.coordinator.whole(round_, self.model, self._epochs(round_), last=False))
        self.own |= own


def run(
    baseline: LabelledBaseline, fleet: UnlabelledFleet, setting: TactflSetting, seed: int, tell: Say
) -> TactflOutcome:
    """See :func:`lichen_lab.benchmarks.studies.tactfl.baselines.loop.run`.

    Raises:
        Misconfigured: there is no such option.
    """
    made = SplitRun(baseline, fleet, setting, seed)
    return made.coordinator.play_rounds(tell, made.round, lambda: made.model, tuned=False)
