"""FedAvg with a network of one linear layer, as NumPy: every device trains it so, with torch or without."""

import numpy as np

from models.contract import Blobs, ClientContext, LocalResult, Tensors, WindowSet
from models.methods.fedavg import MAX_WEIGHT, METHOD, FedAvgConfig
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training.softmax_regression import SoftmaxRegression, linear_head, side_by_side
from models.training.usable_windows import nothing_to_learn, usable


class FedAvgLinear:
    """See :class:`models.contract.LinearClient`."""

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """As ``FedAvgClient.train``.

        Raises:
            Transient: no labelled window can train.
            Refused: the head does not fit the task.
        """
        del private
        used, metrics = trainable(context, windows, context.task.modality_names)
        task, config = context.task, METHOD.configure(context.task)
        rng = np.random.default_rng(derive_seed(context.seed, context.device, context.round))
        head = linear_head(state, task)
        trained = SoftmaxRegression(task.labels, config, head, rng, proximal=config.proximal)
        metrics |= trained.run(side_by_side(task, config, used, {}), used.y_B, context.round)
        return LocalResult(
            tensors=difference(trained.head, flatten(state)), weight=weight_of(config, used), metrics=metrics
        )


def trainable(
    context: ClientContext, windows: WindowSet, encoders: tuple[str, ...]
) -> tuple[WindowSet, dict[str, float]]:
    """The windows of a round, and counts of them; ``incomplete`` counts those that lack a modality.

    Args:
        context: of the round.
        windows: of the device.
        encoders: modalities that this device has an encoder for.

    Raises:
        Transient: there is none.
    """
    config = METHOD.configure(context.task)
    used, metrics = usable(context, windows, encoders, complete=config.impute == "complete_only")
    metrics["incomplete"] = float((~used.present_BM).any(axis=1).sum())
    if not len(used):
        raise nothing_to_learn(context, metrics)
    return used, metrics


def weight_of(config: FedAvgConfig, windows: WindowSet) -> int:
    """Of the device's update, from the windows that it trained on."""
    return min(len(windows), MAX_WEIGHT) if config.weigh_by == "size" else 1


make_client = FedAvgLinear
