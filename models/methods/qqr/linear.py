"""QQR with a network of one linear layer, as NumPy: every device trains it so, with torch or without.

There is no encoder, so the loss is (20) alone: nothing pulls features towards prototypes (22), and the
features of a round are completed once, before its first step. The layer is trained by the softmax's
cross-entropy with SGD, in batches, as the networks of torch are; its update has the same tensors.

Shapes: B windows, N of a batch, M modalities, D features, F = M * D inputs of the layer, K classes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors, WindowSet
from models.data import window_set
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.local_rounds import OwnWeights, model_travels, nothing_to_learn, usable
from models.methods.qqr.personal import kept_head, kept_prototypes
from models.methods.qqr.prototyper import (
    LocalPrototypes,
    QqrPrototyper,
    high_quality,
    local_prototypes,
    normalise,
)
from models.methods.qqr.prototypes import table
from models.privacy.account import Account
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training.training_choices import weight_of_each
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task

WEIGHT: Final = "head/fc2.weight"
BIAS: Final = "head/fc2.bias"
_HEAD: Final = "head"


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
        head = _head(own.over(state), task)
        if ready_B.any():
            values = {name: vbar_KD for name, (vbar_KD, _) in tables.items()}
            rng = np.random.default_rng(derive_seed(context.seed, context.device, context.round))
            trained = _Training(task, config, head, rng)
            metrics |= trained.run(window_set.where(used, ready_B), values, seen, context.round)
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


def _head(state: Blobs, task: Task) -> Tensors:
    wanted = len(task.labels), len(task.modalities) * task.network.feature_dim
    head = {name: np.array(values) for name, values in state.get(_HEAD, {}).items()}
    if {name: x.shape for name, x in head.items()} != {WEIGHT: wanted, BIAS: wanted[:1]}:
        raise Refused(
            Reason.WRONG_TENSORS, f"the head is {', '.join(head) or 'missing'}, not one layer of {wanted}"
        )
    return head


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
    parts = []
    for m, name in enumerate(task.modality_names):
        z_BD = _scaled(windows.x[name].reshape(len(windows), -1), config)
        v_KD = np.where(seen[name][:, None], _scaled(values[name], config), np.float32(0))
        instead = np.zeros_like(z_BD)
        if config.impute == "pnr":  # (18, 19); a class without prototype has a row of zeros
            instead = v_KD[windows.y_B]
        elif config.impute == "mean_feature" and seen[name].any():
            instead = np.broadcast_to(v_KD[seen[name]].mean(axis=0), z_BD.shape)
        parts.append(np.where(windows.present_BM[:, m, None], z_BD, instead))
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _scaled(z: FloatArray, config: QqrConfig) -> FloatArray:
    return normalise(z, config.feature_scale) if config.normalise else z


class _Training:
    """One device's softmax regression in one round.

    Args:
        task: the classes.
        config: the options.
        head: weights before; :attr:`head` has those after.
        rng: of the batches.
    """

    def __init__(self, task: Task, config: QqrConfig, head: Tensors, rng: np.random.Generator) -> None:
        self.head = head
        self._task, self._config, self._rng = task, config, rng

    def run(
        self,
        windows: WindowSet,
        values: Mapping[str, FloatArray],
        seen: Mapping[str, NDArray[np.bool_]],
        round_: int,
    ) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        config, y_B = self._config, windows.y_B
        z_BF = completed(self._task, config, windows, values, seen)
        lr = max(config.lr_min, config.lr * config.lr_decay ** max(0, round_ - 1))
        counts_K = np.bincount(y_B, minlength=len(self._task.labels)).tolist()
        weights = weight_of_each(config.class_weights, self._task.labels, counts_K)
        weight_B = np.ones(len(y_B)) if weights is None else np.array(weights)[y_B]
        velocity = {name: np.zeros_like(tensor) for name, tensor in self.head.items()}
        loss, hits, steps = 0.0, 0, 0
        for _ in range(config.epochs):
            loss, hits = 0.0, 0
            for at_N in self._batches(y_B):
                lost, right = self._step(z_BF[at_N], y_B[at_N], weight_B[at_N], velocity, lr)
                loss += lost * len(at_N)
                hits += right
                steps += 1
        low_B = (windows.present_BM & ~high_quality(windows.quality_BM, config)).any(axis=1)
        return {
            "loss": loss / len(y_B),
            "accuracy": hits / len(y_B),
            "lr": lr,
            "steps": float(steps),
            "low_quality": float(low_B.sum()),
        }

    def _batches(self, y_B: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Windows of each step of an epoch, in batches of nearly equal length."""
        count = math.ceil(len(y_B) / self._config.batch)
        if self._config.balanced_batches:
            share_B = 1.0 / np.bincount(y_B)[y_B]
            yield from np.array_split(
                self._rng.choice(len(y_B), len(y_B), p=share_B / share_B.sum()).astype(np.int64), count
            )
            return
        yield from np.array_split(self._rng.permutation(len(y_B)), count)

    def _step(
        self,
        z_NF: FloatArray,
        y_N: NDArray[np.int64],
        weight_N: NDArray[np.float64],
        velocity: Tensors,
        lr: float,
    ) -> tuple[float, int]:
        """One step of SGD on (20): the loss, and how many windows were right before it."""
        logits_NK = (z_NF @ self.head[WEIGHT].T + self.head[BIAS]).astype(np.float64)
        logits_NK -= logits_NK.max(axis=1, keepdims=True)
        p_NK = np.exp(logits_NK)
        total_N1, rows_N = p_NK.sum(axis=1, keepdims=True), np.arange(len(y_N))
        right = int((logits_NK.argmax(axis=1) == y_N).sum())
        if not (weight := float(weight_N.sum())):
            return 0.0, right
        lost = float((weight_N * (np.log(total_N1[:, 0]) - logits_NK[rows_N, y_N])).sum()) / weight
        p_NK /= total_N1
        p_NK[rows_N, y_N] -= 1
        slope_NK = (p_NK * (weight_N / weight)[:, None]).astype(np.float32)
        slopes = {WEIGHT: slope_NK.T @ z_NF, BIAS: slope_NK.sum(axis=0)}
        for name, slope in slopes.items():
            pulled = slope + np.float32(self._config.weight_decay) * self.head[name]
            velocity[name] = np.float32(self._config.momentum) * velocity[name] + pulled
            self.head[name] = (self.head[name] - np.float32(lr) * velocity[name]).astype(np.float32)
        return lost, right


def kept(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
    task: Task, config: QqrConfig, state: Blobs, private: Tensors, own: OwnWeights, made: LocalPrototypes
) -> Tensors:
    """The tensors that stay on the device until the next round."""
    kept = Account.of(private, task.modality_names).tensors()
    if config.model_every > 1:
        kept |= own.kept(state)
    return kept | kept_head(config, private, own.tensors) | kept_prototypes(task, config, private, made.means)


make_client = QqrLinear
