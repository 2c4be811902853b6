"""DisentAFL-KD on a device: the fleet's features as distillation targets, and its own. Imports torch.

A window's feature ``Z[m, o]`` is compared with the fleet's mean of its class of target o; ``Z[m, shared]``
with that of each target's class in turn. A target without classes (a regression, a generation) has one row;
there the batch's mean is compared with it, as the paper names no rule for these.

Shapes: B windows, M modalities of the route and, last, the shared one; J the columns of Z that a target uses,
its own and the shared one; K rows of a target, F latent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.contract import Blobs, FloatArray
from models.methods.disentafl import SHARED, losses
from models.methods.disentafl.network.batch import Truth
from models.methods.disentafl.network.supernet import Subnet, SupernetView
from models.methods.disentafl.routing.mean_features import blob_name, rounds_name, rows_of, values_name
from protocol.tasks.task import Target, Task

Rows = dict[str, dict[int, FloatArray]]
"""By blob, row -> mean feature."""


def _columns(net: Subnet, o: int) -> dict[int, str]:
    """Columns of Z that target number o uses, and the name of each."""
    shared = {len(net.targets): SHARED}
    return {o: net.targets[o].name} | shared if "mote" in net.families else shared


def _class(target: Target, truth: Truth) -> Tensor:
    """(B,) the row of each window; what is no classification has one."""
    return truth.y if target.kind == "classification" else torch.zeros(len(truth.y), dtype=torch.int64)


@dataclass(frozen=True)
class FleetTeacher:
    """The fleet's mean features.

    Attributes:
        net: the device's network.
        tables: by target of the route, ``values_MJKF`` and which rows there are, ``seen_MJK``.
    """

    net: Subnet
    tables: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, task: Task, net: Subnet, state: Blobs) -> "FleetTeacher":
        """From the blobs ``features/...`` of a route."""
        tables = {}
        for o, target in enumerate(net.targets):
            values, seen = [], []
            for m in (*net.modalities, SHARED):
                for column in _columns(net, o).values():
                    blob = blob_name(m, column)
                    rows = list(rows_of(task, target.name, within=column))
                    values.append(state[blob][values_name(blob)][rows])
                    seen.append(state[blob][rounds_name(blob)][rows] > 0)
            shape = (len(net.modalities) + 1, -1, len(rows_of(task, target.name)))
            tables[target.name] = (
                torch.from_numpy(np.stack(values)).reshape(*shape, values[0].shape[1]),
                torch.from_numpy(np.stack(seen)).reshape(shape),
            )
        return cls(net, tables)

    def loss(self, seen: SupernetView, truth: Mapping[str, Truth]) -> Tensor:
        """The distillation loss, mean over targets."""
        found = []
        for o, target in enumerate(self.net.targets):
            values_MJKF, seen_MJK = self.tables[target.name]
            class_B = _class(target, truth[target.name])
            known_BMJF = values_MJKF[:, :, class_B].permute(2, 0, 1, 3)
            counts_BMJ = seen_MJK[:, :, class_B].permute(2, 0, 1) & seen.there_BM[:, :, None]
            counts_BMJ = counts_BMJ & truth[target.name].labelled_B[:, None, None]
            z_BMJF = seen.z_BMOF[:, :, list(_columns(self.net, o))]
            pull = losses.distillation if target.kind == "classification" else losses.mean_distillation
            found.append(pull(z_BMJF.flatten(1, 2), known_BMJF.flatten(1, 2), counts_BMJ.flatten(1)))
        return torch.stack(found).mean()


def own_features(task: Task, net: Subnet, seen: SupernetView, truth: Mapping[str, Truth]) -> Rows:
    """The device's mean feature by knowledge type and class, of those it has windows of; float64 sums."""
    made: Rows = {}
    for o, target in enumerate(net.targets):
        class_B, labelled_B = _class(target, truth[target.name]), truth[target.name].labelled_B
        one_BK = functional.one_hot(class_B, len(rows_of(task, target.name))) * labelled_B[:, None]
        for m, name in enumerate((*net.modalities, SHARED)):
            here_KB = (one_BK * seen.there_BM[:, m, None]).T.to(torch.float64)
            count_K = here_KB.sum(dim=1)
            for j, column in _columns(net, o).items():
                mean_KF = (here_KB @ seen.z_BMOF[:, m, j].to(torch.float64)) / count_K.clamp(min=1)[:, None]
                rows = rows_of(task, target.name, within=column)
                found = made.setdefault(blob_name(name, column), {})
                for k in torch.nonzero(count_K).flatten().tolist():
                    found[rows[k]] = mean_KF[k].to(torch.float32).numpy()
    return {blob: dict(sorted(rows.items())) for blob, rows in made.items() if rows}
