"""Differential privacy of a device's prototypes: the Gaussian mechanism. NumPy, torch-free.

Protected: the content of one window of one device; for a moment, which lies in several windows, see
``models/privacy/account.py``, where the account is. Neighbouring data differ in one window's samples; its
class, the modalities it has and whether they are good enough to be used are the same (replace-one). A release
is the mean (13) of n features, each of length L at most, so replacing one moves it by ``2 L / n`` at most;
noise of ``dp_noise`` times that is added to every coordinate, and the release satisfies zero-concentrated
differential privacy with ``rho = 1 / (2 dp_noise^2)`` (Bun and Steinke 2016, proposition 1.6). A window is in
the means of one class, one for each modality it has, in every round in which it is used: the rhos add (lemma
1.7). Later steps on the noised mean (length, quantizer, fold) cost nothing.

*Not* protected, and sent in the clear: how many windows of each class and modality there are (exactly, in the
message and the header), how many are missing or of low quality, the mean quality, and other counts among the
metrics. *That* a class occurs on a device is not kept secret.

The account identifies each signal (a window's samples of one modality) by a hash of its content, and counts
the releases that it was in, so a window that has left costs no more and new ones begin at zero. The report is
a bound for every window since the device began: the largest rho of each modality, added up. If a budget is
set, a signal that has spent its modality's part of it gives no prototypes any more, and the others do.
Signals that are equal to the last bit count as one. Old ones are dropped, except for the largest rho of them;
one that comes back later begins at zero, and the bound does not cover it.

The noise comes from the operating system's source of randomness and is different every time. This gives up,
on purpose, that the same seed gives the same bytes: the round's seed is known to the coordinator, which could
remove any noise derived from it. It is drawn in floating point: the last bits of a float could reveal more
than the theory allows, so do not send noised prototypes as float32 (``prototype_bits = 32``) to an untrusted
coordinator.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray, Tensors, WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.personal import Means
from models.privacy.account import Account, epsilon_of, limit_in, overlap, rho_of, rho_within, span_of
from models.privacy.local.system_random import system_noise
from protocol.tasks.task import Task

Draw = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Standard normal numbers of a shape."""
_ID_BYTES: Final = 8
_SLACK: Final = 1 + 1e-6
"""The account is rounded up to float32: a budget for k releases must still allow the k-th."""


def sensitivity(count: NDArray[np.int64], length: float) -> NDArray[np.float64]:
    """How far a mean of ``count`` vectors of at most ``length`` moves when one is replaced: 2 L / n."""
    moved: NDArray[np.float64] = 2.0 * length / count
    return moved


def noised(
    v_KD: FloatArray, count_K: NDArray[np.int64], length: float, dp_noise: float, draw: Draw
) -> FloatArray:
    """Class means with Gaussian noise of ``dp_noise`` sensitivities; rows without windows stay."""
    sigma_K = np.where(count_K > 0, dp_noise * sensitivity(np.maximum(count_K, 1), length), 0.0)
    return np.asarray(v_KD + sigma_K[:, None] * draw(v_KD.shape), np.float32)


def signals(x_BCT: FloatArray) -> list[int]:
    """The key of each window's samples: 64 bits of a hash of their bytes."""
    rows = np.ascontiguousarray(x_BCT, np.float32)
    return [
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=_ID_BYTES).digest(), "little")
        for row in rows
    ]


class Guard:
    """Limits and noises a device's prototypes of one round.

    Without ``dp_noise`` it changes nothing and spends nothing.

    Args:
        task: how windows are cut, and its modalities.
        config: its options.
        private: the device's private tensors, with its account before this round and its own limit.
        draw: source of noise.

    Attributes:
        account: after the admitted signals.
        withheld: signals that were not used, because their budget is spent.
    """

    def __init__(self, task: Task, config: QqrConfig, private: Tensors, draw: Draw = system_noise) -> None:
        self._config = config
        self._draw = draw
        self._moment = overlap(span_of(task), task.window.stride_s) ** 2
        self._limit = limit_in(private)
        self._used: dict[str, list[tuple[int, int]]] = {}
        self.account = Account.of(private, task.modality_names)
        self.withheld = 0

    def admitted(
        self, windows: WindowSet, modalities: Sequence[str], good_BM: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """The signals that may give prototypes, (B, M): those of ``good_BM`` that have budget left."""
        config = self._config
        if not config.dp_noise:
            return good_BM
        budget = self._limit
        if config.dp_epsilon_max is not None:
            budget = min(budget, rho_within(config.dp_epsilon_max, config.dp_delta))
        budget *= _SLACK / len(modalities)
        admitted_BM = good_BM.copy()
        for m, name in enumerate(modalities):
            if not good_BM[:, m].any():
                continue
            ids = signals(windows.x[name])
            within_B = self.account.rho(name, ids) + rho_of(config.dp_noise) <= budget
            admitted_BM[:, m] &= within_B
            self.withheld += int((good_BM[:, m] & ~within_B).sum())
            self._used[name] = [(ids[b], int(windows.y_B[b])) for b in np.flatnonzero(admitted_BM[:, m])]
        return admitted_BM

    def protect(self, means: Means) -> Means:
        """The means with noise, as they may leave the device; their windows are charged for it."""
        config = self._config
        if not config.dp_noise:
            return means
        length = config.feature_scale if config.normalise else config.prototype_clip
        protected: dict[str, tuple[FloatArray, NDArray[np.int64]]] = {}
        for name, (v_KD, count_K) in means.items():
            used = {signal for signal, label in self._used[name] if count_K[label]}
            if used:
                self.account = self.account.after(name, used, rho_of(config.dp_noise))
            protected[name] = noised(v_KD, count_K, length, config.dp_noise, self._draw), count_K
        return protected

    def metrics(self) -> dict[str, float]:
        """Bounds for every window and every moment, and ``withheld``; nothing without noise."""
        if not self._config.dp_noise:
            return {}
        delta, rho = self._config.dp_delta, self.account.most
        bounds = {"epsilon": epsilon_of(rho, delta), "epsilon_moment": epsilon_of(rho * self._moment, delta)}
        return {**bounds, "withheld": float(self.withheld)}

    def why_nothing(self) -> str:
        """The reason why a device sends no prototype at all."""
        if not self.withheld:
            return "no labelled windows that can make prototypes"
        most, config = self._config.dp_epsilon_max, self._config
        within = math.inf if most is None else rho_within(most, config.dp_delta)
        words = "the device's own limit (learn.max_epsilon)"
        if most is not None and within <= self._limit:
            words = f"dp_epsilon_max = {most:g} (delta {config.dp_delta:g})"
        return (
            "the privacy budget of its windows is spent (new ones begin at nothing): prototypes of these "
            f"would take epsilon above {words}"
        )
