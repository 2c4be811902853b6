"""FedAvg: one network that all devices train with their labels, averaged by the coordinator. Torch-free.

McMahan et al. 2017, for several modalities; with FedProx's term (Li et al. 2020) and FedBN's private norms
(Li et al. 2021) as options. Server optimizers (Reddi et al. 2021) are ``task.aggregator``. Where the papers
leave a choice:

- A modality that a window lacks is a feature of zeros for the head, in training and at inference.
- An encoder is averaged over the devices that trained it in the round, the head over all.
- BatchNorm's statistics are sent and averaged like parameters, after they were measured anew.
- FedProx's term covers the parameters that a step moves: an encoder of which no window of a batch has the
  modality stays.
- FedBN is of BatchNorm: layer normalisation (of ``transformer1d``) has no statistics, and is shared.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from models.packages import ENCODERS, NETWORKS
from models.spec import MethodSpec
from models.training.supervised_options import SupervisedConfig, misfit_of
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import LINEAR, is_own
from protocol.tasks.task import Task

MAX_WEIGHT: Final = 10_000
"""A device with more windows weighs as one with so many: the weights of a fold have a bound."""


class FedAvgConfig(SupervisedConfig):
    """Options of the task's ``config`` table, beside those that methods share."""

    impute: Literal["zero_feature", "complete_only"] = "zero_feature"
    """A window that lacks a modality: a feature of zeros stands for it; or the window does not train."""
    weigh_by: Literal["size", "equal"] = "size"
    """Weights in the mean: the number of windows that a device trained on, at most 10,000; or 1. Robust folds
    (``robust.fold``) give every device one vote."""
    proximal: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """FedProx's mu: each step is drawn back towards the values that the round began with. 0 is FedAvg."""
    private_norms: Literal["none", "strict", "with_mean"] = "none"
    """FedBN: each device trains and predicts with a BatchNorm of its own. ``strict``: norms never leave
    devices; the coordinator cannot evaluate, and a device that has not trained yet predicts with the norms of
    version 0. ``with_mean``: their mean travels as well, for the coordinator and for devices without norms of
    their own. ``none``: norms are shared (FedAvg)."""


def _misfit(config: FedAvgConfig, task: Task) -> str:
    if config.private_norms != "none" and task.network.kind == LINEAR:
        return f"private_norms: {config.private_norms!r}: a {LINEAR!r} network has no norms; leave it out"
    return misfit_of(config, task)


def _not_local(config: FedAvgConfig, task: Task) -> str:
    network = task.network
    kinds = (network.kind, *(encoder.kind for encoder in network.encoders.values()))
    if network.kind == LINEAR:
        return f"a {LINEAR!r} network is trained with NumPy, without gradients of single windows"
    if own := next((kind for kind in kinds if is_own(kind)), None):
        return f"{own!r} is a part of a package, which may mix the windows of a batch"
    wrong: dict[str, tuple[bool, str]] = {
        "private_norms": (
            config.private_norms != "none",
            "norms are not measured, and have no part of their own",
        ),
        "balanced_batches": (config.balanced_batches, "each window is taken with the same probability"),
        "class_weights": (config.class_weights == "balanced", "one window would change what others weigh"),
    }
    return next((f"config.{key}: {why}; leave it out" for key, (is_so, why) in wrong.items() if is_so), "")


METHOD = MethodSpec(
    name="fedavg",
    title="FedAvg: the mean of what devices learn from their labels",
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
    "AISTATS 2017; Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; Li et al., "
    "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021",
    config=FedAvgConfig,
    summed=True,
    needs_labels=True,
    augments=True,
    in_groups=True,
    personal=lambda config: () if config.private_norms == "none" else ("encoder",),
    own_parts=(ENCODERS, NETWORKS),
    linear=True,
    misfit=_misfit,
    not_private=lambda _config, _task: "",
    not_local=_not_local,
    class_rows=lambda name: "label" if name.startswith("head/fc2.") else "",
    modality_columns=("head/fc1.weight",),
    uplink=Uplink(codec="steps", coarseness=2.5),
    downlink=Downlink(coarseness=2.0),
    symbols={
        "K": "devices",
        "n_k": "header.weight",
        "E": "epochs",
        "B": "batch",
        "eta": "lr",
        "w": "encoder/<modality>, head",
        "mu": "proximal",
    },
)
