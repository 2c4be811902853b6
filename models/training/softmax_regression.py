"""Training of a network of one linear layer with NumPy, as every device does it, with torch or without.

The layer is trained by the softmax's cross-entropy with SGD, in batches, as the networks of torch are; its
update has the same tensors. There is no encoder, so the features of a round are completed once, before its
first step.

Shapes: B windows, N of a batch, M modalities, D features, F = M * D inputs of the layer, K classes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, FloatArray, Tensors, WindowSet
from models.training.supervised_options import SupervisedConfig
from models.training.training_choices import weight_of_each
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task

WEIGHT: Final = "head/fc2.weight"
BIAS: Final = "head/fc2.bias"
_HEAD: Final = "head"
_EPSILON: Final = 1e-6


def length(z: FloatArray) -> NDArray[np.float64]:
    """``||z||`` along the last axis, which stays."""
    norm: NDArray[np.float64] = np.sqrt(np.square(z, dtype=np.float64).sum(axis=-1, keepdims=True))
    return norm


def normalise(z: FloatArray, scale: float) -> FloatArray:
    """``scale * z / ||z||`` along the last axis; a zero vector stays zero."""
    scaled: FloatArray = (z * (scale / np.maximum(length(z), _EPSILON))).astype(np.float32)
    return scaled


def scaled(z: FloatArray, options: SupervisedConfig) -> FloatArray:
    """Features at their set length; unchanged when ``normalise`` is off."""
    return normalise(z, options.feature_scale) if options.normalise else z


def linear_head(state: Blobs, task: Task) -> Tensors:
    """A copy of the layer's weights.

    Raises:
        Refused: they do not fit the task.
    """
    wanted = len(task.labels), len(task.modalities) * task.network.feature_dim
    head = {name: np.array(values) for name, values in state.get(_HEAD, {}).items()}
    if {name: x.shape for name, x in head.items()} != {WEIGHT: wanted, BIAS: wanted[:1]}:
        raise Refused(
            Reason.WRONG_TENSORS, f"the head is {', '.join(head) or 'missing'}, not one layer of {wanted}"
        )
    return head


def side_by_side(
    task: Task, options: SupervisedConfig, windows: WindowSet, instead: Mapping[str, FloatArray]
) -> FloatArray:
    """``z_BF``: the features of all modalities in the task's order, at their set length.

    Args:
        task: order of the modalities.
        options: of the method.
        windows: of a round.
        instead: by modality, ``z_BD`` for windows that lack it; without one: zeros.
    """
    parts = []
    for m, name in enumerate(task.modality_names):
        z_BD = scaled(windows.x[name].reshape(len(windows), -1), options)
        filled_BD = instead.get(name, np.zeros_like(z_BD))
        parts.append(np.where(windows.present_BM[:, m, None], z_BD, filled_BD))
    return np.concatenate(parts, axis=1, dtype=np.float32)


class SoftmaxRegression:
    """One device's training of the layer in one round.

    Args:
        labels: how many classes there are.
        options: of the method.
        head: weights before; :attr:`head` has those after.
        rng: of the batches.
        proximal: mu of FedProx's term, as of :class:`models.training.local.Sgd`.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        options: SupervisedConfig,
        head: Tensors,
        rng: np.random.Generator,
        *,
        proximal: float = 0.0,
    ) -> None:
        self.head = head
        self._first = {name: tensor.copy() for name, tensor in head.items()}
        self._labels, self._options, self._rng, self._proximal = labels, options, rng, np.float32(proximal)

    def run(self, z_BF: FloatArray, y_B: NDArray[np.int64], round_: int) -> dict[str, float]:
        """All epochs; the metrics of the last one."""
        options = self._options
        lr = max(options.lr_min, options.lr * options.lr_decay ** max(0, round_ - 1))
        counts_K = np.bincount(y_B, minlength=len(self._labels)).tolist()
        weights = weight_of_each(options.class_weights, self._labels, counts_K)
        weight_B = np.ones(len(y_B)) if weights is None else np.array(weights)[y_B]
        velocity = {name: np.zeros_like(tensor) for name, tensor in self.head.items()}
        loss, hits, steps = 0.0, 0, 0
        for _ in range(options.epochs):
            loss, hits = 0.0, 0
            for at_N in self._batches(y_B):
                lost, right = self._step(z_BF[at_N], y_B[at_N], weight_B[at_N], velocity, lr)
                loss += lost * len(at_N)
                hits += right
                steps += 1
        return {"loss": loss / len(y_B), "accuracy": hits / len(y_B), "lr": lr, "steps": float(steps)}

    def _batches(self, y_B: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Windows of each step of an epoch, in batches of nearly equal length."""
        count = math.ceil(len(y_B) / self._options.batch)
        if self._options.balanced_batches:
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
        """One step of SGD: the loss, and how many windows were right before it."""
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
            pulled = slope + np.float32(self._options.weight_decay) * self.head[name]
            if self._proximal:
                pulled = pulled + self._proximal * (self.head[name] - self._first[name])
            velocity[name] = np.float32(self._options.momentum) * velocity[name] + pulled
            self.head[name] = (self.head[name] - np.float32(lr) * velocity[name]).astype(np.float32)
        return lost, right
