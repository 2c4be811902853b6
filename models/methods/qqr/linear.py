"""QQR with a network of one linear layer, as NumPy: every device trains it so, with torch or without.

There is no encoder, so the loss is (20) alone: nothing pulls features towards prototypes (22).

Shapes: B windows, M modalities, D features, F = M * D inputs of the layer, K classes.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors, WindowSet
from models.data import window_set
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.local_rounds import OwnWeights, model_travels, usable
from models.methods.qqr.personal import kept_head, kept_prototypes
from models.methods.qqr.prototyper import (
    LocalPrototypes,
    QqrPrototyper,
    high_quality,
    local_prototypes,
)
from models.methods.qqr.prototypes import table
from models.privacy.account import Account
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training.softmax_regression import SoftmaxRegression, linear_head, scaled, side_by_side
from models.training.usable_windows import nothing_to_learn
from protocol.tasks.task import Task


class QqrLinear:
    """See :class:`models.contract.LinearClient`.

    Args:
        prototyper: computes prototypes if nothing else is sent.
    """

    def __init__(self, prototyper: QqrPrototyper | None = None) -> None:
        self._prototyper = prototyper or QqrPrototyper()

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """As ``QqrClient.train``.

        Raises:
            Transient: no labelled window can train.
            Refused: the head does not fit the task.
        """
        task, config = context.task, METHOD.configure(context.task)
        tables = {name: table(state, name) for name in task.modality_names}
        seen = {name: rounds_K > 0 for name, (_, rounds_K) in tables.items()}
        used, ready_B, metrics = usable(context, windows, frozenset(task.modality_names), seen, config)
        raw = {name: used.x[name].reshape(len(used), -1) for name in task.modality_names}
        if config.upload == "prototypes":
            result = self._prototyper.summarise(context, used, raw, private)
            result.metrics = metrics | {k: v for k, v in result.metrics.items() if k not in metrics}
            return result
        own = OwnWeights.of(state, private) if config.model_every > 1 else OwnWeights({})
        head = linear_head(own.over(state), task)
        if ready_B.any():
            values = {name: vbar_KD for name, (vbar_KD, _) in tables.items()}
            rng = np.random.default_rng(derive_seed(context.seed, context.device, context.round))
            trained = SoftmaxRegression(task.labels, config, head, rng)
            ready = window_set.where(used, ready_B)
            metrics |= trained.run(completed(task, config, ready, values, seen), ready.y_B, context.round)
            low_B = (ready.present_BM & ~high_quality(ready.quality_BM, config)).any(axis=1)
            metrics["low_quality"] = float(low_B.sum())
            own = OwnWeights(trained.head, own.rounds + 1)
        tensors: Tensors = {}
        if model_travels(task, config, context.round):
            tensors = difference(own.tensors, flatten(state))
        made = local_prototypes(task, config, used, _present(raw, used, task))
        if not tensors and not made.tensors:
            raise nothing_to_learn(context, metrics)
        if config.model_every > 1:
            metrics["local_rounds"] = float(own.rounds)
        return LocalResult(
            tensors=tensors | made.tensors,
            codecs=made.codecs,
            metrics=metrics | made.metrics,
            extra=made.message.extra(),
            private=kept(task, config, state, private, own, made),
        )


def _present(raw: Mapping[str, FloatArray], windows: WindowSet, task: Task) -> dict[str, FloatArray]:
    """Features of the modalities that some window has."""
    return {name: raw[name] for m, name in enumerate(task.modality_names) if windows.present_BM[:, m].any()}


def completed(
    task: Task,
    config: QqrConfig,
    windows: WindowSet,
    values: Mapping[str, FloatArray],
    seen: Mapping[str, NDArray[np.bool_]],
) -> FloatArray:
    """``z_BF``: the features of all modalities side by side, missing ones filled in by ``impute``.

    Args:
        task: order of the modalities.
        config: the options.
        windows: labelled.
        values: ``vbar_KD`` by modality.
        seen: which classes have a prototype.
    """
    instead: dict[str, FloatArray] = {}
    for name in task.modality_names:
        v_KD = np.where(seen[name][:, None], scaled(values[name], config), np.float32(0))
        if config.impute == "pnr":  # (18, 19); a class without prototype has a row of zeros
            instead[name] = v_KD[windows.y_B]
        elif config.impute == "mean_feature" and seen[name].any():
            mean_D = v_KD[seen[name]].mean(axis=0)
            instead[name] = np.broadcast_to(mean_D, (len(windows), len(mean_D)))
    return side_by_side(task, config, windows, instead)


def kept(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
    task: Task, config: QqrConfig, state: Blobs, private: Tensors, own: OwnWeights, made: LocalPrototypes
) -> Tensors:
    """The tensors that stay on the device until the next round."""
    kept = Account.of(private, task.modality_names).tensors()
    if config.model_every > 1:
        kept |= own.kept(state)
    return kept | kept_head(config, private, own.tensors) | kept_prototypes(task, config, private, made.means)


make_client = QqrLinear
