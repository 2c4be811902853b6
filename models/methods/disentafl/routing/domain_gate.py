"""DomGate: which of D domains suits a device's data, epsilon-greedy. NumPy only: the agent asks it too.

Every modality has a small network psi, the blob ``gate/<m>``: a window's summary -> ``hidden`` -> tanh ->
``out`` -> one score a domain, an estimate of the validation accuracy that a device with such data sees with
that domain's experts. What a device's data score is the mean over its windows, then over its modalities.

Each psi is fitted to the accuracies that the device has seen (the memory B_i); older ones count less, because
the fleet's model gets better whatever the domain. At first psi is random, so that devices with like data
meet in one domain and others in another.

Shapes: B windows, C channels, T samples, S = 2 C numbers of a summary, H hidden units, D domains, N pairs.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import ClientContext, FloatArray, Profile, Tensors, WindowSet
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.routing.blob_names import config_of, gated
from protocol.tasks.task import Task

MEMORY: Final = "gate_memory/pairs"
"""Of what a device keeps: ``(N, 2)``, oldest first; domain, and accuracy seen with it."""
STEPS: Final = 32
"""Of gradient descent, a round."""
RECENCY: Final = 0.9
"""A pair counts so many times what the next newer one does."""
MAX_STEP: Final = 0.25
"""No value of psi moves further in a round: an update whose gate does is refused."""
_START, _SPREAD = 0.5, 0.25
"""Before anything was seen, scores lie around the one, about so far apart."""
_FAR: Final = 50.0
"""A summary's number is no larger, whatever a broken sensor says."""
_BLOCK: Final = 256
"""Windows that are in memory as float64 at a time."""

Wide = NDArray[np.float64]
Named = Mapping[str, FloatArray]


def initial(task: Task, modality: str, rng: np.random.Generator) -> Tensors:
    """A modality's psi before any round, by wire name."""
    config = config_of(task)
    size, hidden = 2 * task.modality(modality).channels, config.gate_hidden
    psi = _Psi(
        rng.normal(0, size**-0.5, (hidden, size)),
        np.zeros(hidden),
        rng.normal(0, _SPREAD, (config.domains, hidden)),
        np.full(config.domains, _START),
    )
    return psi.tensors(modality)


def summary(task: Task, modality: str, x_BCT: FloatArray) -> Wide:
    """``s_BS``: by channel, arcsinh of the mean, and log(1e-3 + standard deviation).

    Of the window as the network reads it, by the task's offset and scale.
    """
    spec = task.modality(modality)
    s_BS = np.empty((len(x_BCT), 2 * spec.channels))
    for start in range(0, len(x_BCT), _BLOCK):
        # float64: the squares of finite float32 values may not fit into float32
        wide_BCT = (x_BCT[start : start + _BLOCK].astype(np.float64) - spec.offset) / spec.scale
        s_BS[start : start + _BLOCK, : spec.channels] = np.arcsinh(wide_BCT.mean(axis=2))
        s_BS[start : start + _BLOCK, spec.channels :] = np.log(1e-3 + wide_BCT.std(axis=2))
    clipped_BS: Wide = np.clip(s_BS, -_FAR, _FAR)
    return clipped_BS


def scores(task: Task, tensors: Named, profile: Profile, windows: WindowSet) -> FloatArray:
    """``scores_D``: what psi makes of a device's data; zeros where there is nothing to tell from.

    Args:
        task: names, shapes and options.
        tensors: by wire name, at least the ``gate`` blobs of the profile's modalities.
        profile: modalities that the device reads; those without a window are passed over.
        windows: labelled or not.
    """
    config = config_of(task)
    seen = _summaries(task, profile, windows) if gated(config) else {}
    found = [_Psi.of(tensors, m).of_data(s_BS) for m, s_BS in seen.items()]
    return np.asarray(np.mean(found, axis=0) if found else np.zeros(config.domains), np.float32)


def choose(scores_D: FloatArray, config: DisentAflConfig, context: ClientContext) -> int:
    """The domain of this round: the best, or with probability ``epsilon`` any, each as likely.

    The same seed, device and round give the same choice from the same scores.
    """
    if not gated(config):
        return 0
    rng = np.random.default_rng([context.seed, zlib.crc32(context.device.encode()), context.round])
    if rng.random() < config.epsilon:
        return int(rng.integers(config.domains))
    return int(np.argmax(scores_D))


def trained(  # noqa: PLR0917 - the first four are those of scores, in its order
    task: Task,
    tensors: Named,
    profile: Profile,
    windows: WindowSet,
    memory_N2: FloatArray,
    config: DisentAflConfig,
) -> Tensors:
    """Psi after this round: gradient descent on the squared error of the scores of the domains tried.

    Args:
        task: names and shapes.
        tensors: as for :func:`scores`.
        profile: as for :func:`scores`.
        windows: the device's data, which stand for those of earlier rounds too.
        memory_N2: see :data:`MEMORY`; an empty one teaches nothing.
        config: the task's options.

    Returns:
        New values, by wire name, of every modality in the profile that has a gate; unchanged where it has no
        window.
    """
    if not gated(config):
        return {}
    seen = _summaries(task, profile, windows)
    share_D, goal_D = _goals(memory_N2, config.domains)
    new: Tensors = {}
    for modality in profile.modalities:
        psi = _Psi.of(tensors, modality)
        if modality in seen and len(memory_N2):
            psi = _fitted(psi, seen[modality], share_D, goal_D, config.gate_lr)
        new |= {name: _near(tensors[name], value) for name, value in psi.tensors(modality).items()}
    return new


def _near(before: FloatArray, value: FloatArray) -> FloatArray:
    near: FloatArray = np.clip(value, before - np.float32(MAX_STEP), before + np.float32(MAX_STEP))
    return near


def memory_of(private: Named, config: DisentAflConfig) -> FloatArray:
    """``memory_N2`` of what a device keeps; pairs that the task's options do not know are dropped."""
    pairs_N2 = private.get(MEMORY, np.zeros((0, 2), np.float32))
    if pairs_N2.ndim != 2 or pairs_N2.shape[1] != 2:  # noqa: PLR2004 - a pair
        return np.zeros((0, 2), np.float32)
    domain_N, accuracy_N = pairs_N2.T
    known_N = np.isfinite(accuracy_N) & np.isin(domain_N, np.arange(config.domains))
    kept_N2: FloatArray = pairs_N2[known_N][-config.gate_memory :]
    return kept_N2


def remembered(memory_N2: FloatArray, domain: int, accuracy: float, config: DisentAflConfig) -> FloatArray:
    """The memory with one more pair; the oldest are forgotten."""
    pair_12 = np.array([[domain, accuracy]], np.float32)
    return np.concatenate([memory_N2, pair_12]).astype(np.float32)[-config.gate_memory :]


@dataclass(frozen=True)
class _Psi:
    """One modality's network; float64 while it is worked with."""

    hidden_HS: Wide
    hidden_H: Wide
    out_DH: Wide
    out_D: Wide

    @classmethod
    def of(cls, tensors: Named, modality: str) -> "_Psi":
        return cls(*(tensors[name].astype(np.float64) for name in _tensor_names(modality)))

    def tensors(self, modality: str) -> Tensors:
        parts = (self.hidden_HS, self.hidden_H, self.out_DH, self.out_D)
        return {
            name: part.astype(np.float32) for name, part in zip(_tensor_names(modality), parts, strict=True)
        }

    def hidden(self, s_BS: Wide) -> Wide:
        """``h_BH``, of length 1 at most: then one step size fits any H."""
        h_BH: Wide = np.tanh(s_BS @ self.hidden_HS.T + self.hidden_H) / np.sqrt(len(self.hidden_H))
        return h_BH

    def of_data(self, s_BS: Wide) -> Wide:
        """``scores_D``, the mean over windows; ``out`` is linear, so it takes their mean ``h_H``."""
        scores_D: Wide = self.out_DH @ self.hidden(s_BS).mean(axis=0) + self.out_D
        return scores_D


def _tensor_names(modality: str) -> tuple[str, ...]:
    parts = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
    return tuple(f"gate/{modality}/{part}" for part in parts)


def _summaries(task: Task, profile: Profile, windows: WindowSet) -> dict[str, Wide]:
    """``s_BS`` of the profile's modalities that are there in some window, of these windows."""
    found: dict[str, Wide] = {}
    for m, name in enumerate(task.modality_names):
        at_B = windows.present_BM[:, m]
        if name in profile.modalities and at_B.any():
            found[name] = summary(task, name, windows.x[name][at_B])
    return found


def _goals(memory_N2: FloatArray, domains: int) -> tuple[Wide, Wide]:
    """By domain: its share in the memory, newer pairs counting more; and the mean accuracy seen with it."""
    weight_N = RECENCY ** np.arange(len(memory_N2))[::-1]
    domain_N = memory_N2[:, 0].astype(np.int64)
    total_D = np.bincount(domain_N, weight_N, domains)
    sum_D = np.bincount(domain_N, weight_N * memory_N2[:, 1], domains)
    return total_D / max(total_D.sum(), 1e-12), sum_D / np.maximum(total_D, 1e-12)


def _fitted(psi: _Psi, s_BS: Wide, share_D: Wide, goal_D: Wide, lr: float) -> _Psi:
    """Full-batch descent on ``sum_d share (score_d - goal_d)^2``; a step that makes it worse is halved."""

    def error(of: _Psi) -> float:
        gap_D = of.of_data(s_BS) - goal_D
        return float(share_D @ np.square(gap_D))

    best = error(psi)
    for _ in range(STEPS):
        tried = _stepped(psi, s_BS, share_D, goal_D, lr)
        found = error(tried)
        if found < best:
            psi, best = tried, found
        else:
            lr /= 2
    return psi


def _stepped(psi: _Psi, s_BS: Wide, share_D: Wide, goal_D: Wide, lr: float) -> _Psi:
    h_BH = psi.hidden(s_BS)
    mean_H, root = h_BH.mean(axis=0), np.sqrt(h_BH.shape[1])
    slope_D = 2 * share_D * (psi.out_DH @ mean_H + psi.out_D - goal_D)
    # through the mean over windows, the division by the root of H, and tanh
    back_BH = (slope_D @ psi.out_DH) / (len(s_BS) * root) * (1 - np.square(h_BH * root))
    return _Psi(
        psi.hidden_HS - lr * back_BH.T @ s_BS,
        psi.hidden_H - lr * back_BH.sum(axis=0),
        psi.out_DH - lr * np.outer(slope_D, mean_H),
        psi.out_D - lr * slope_D,
    )
