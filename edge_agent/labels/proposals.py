"""Active learning: which windows' labels are worth most. Pure.

Windows are chosen one after the other. The next one has the greatest product of

- hesitation: the model's two likeliest classes are close (a small margin),
- distance to everything labelled or chosen before (a weighted k-center), so that one batch does not ask the
  same thing twice,
- typicality: other windows are like it, so that its label says something about them, and it is no accident.

Without a model, distance and typicality decide. Cost: O(B * (B + L + count) * F) for B candidates; the caller
bounds B and L. docs/benchmarks/labels.md has what it is worth.

Shapes: B candidates, L labelled windows, K classes, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST: Final = 0.05
"""Hesitation of a window of which the model is sure: a window unlike all others is still asked for."""
_FAR: Final = 0.75
"""A distance above this share of the greatest one is a reason."""
_TYPICAL: Final = 0.5
"""A typicality from it on is a reason."""
_NEIGHBOURS: Final = 10
"""Windows that a window is compared with for its typicality."""
_SIGNAL: Final = 0.4
"""Weight of the signal's features beside the model's. Chosen, as the form of the rule, on people and seeds
that no table of docs/benchmarks/labels.md has."""
_SURE: Final = 0.5
"""With a margin above it, the reason is another than the model's hesitation."""


@dataclass(frozen=True)
class Proposal:
    """A candidate: index, margin between the two likeliest classes (None: no model), distance, typicality.

    The distance is a share of the greatest one; of the typicality see :func:`typicality`.
    """

    index: int
    margin: float | None
    distance: float
    typical: float


def choose(
    p_BK: NDArray[np.float32] | None, features_BF: Floats, labelled_LF: Floats, count: int
) -> list[Proposal]:
    """The candidates whose labels are worth most, the best first.

    Args:
        p_BK: the model's probabilities; None: no model predicts.
        features_BF: of the candidates; see :func:`features`.
        labelled_LF: the same features of labelled windows; may be empty.
        count: maximal number of proposals.
    """
    if not len(features_BF):
        return []
    margin_B = None if p_BK is None else margins(p_BK)
    typical_B = typicality(features_BF)
    worth_B = typical_B if margin_B is None else typical_B * np.maximum(_LEAST, 1 - margin_B)
    if len(labelled_LF):
        near_B = _distances(features_BF, labelled_LF).min(axis=1)
    else:  # the first is the one in the middle of what the model hesitates on
        spread_B = np.sqrt(((features_BF - features_BF.mean(0)) ** 2).sum(1))
        near_B = spread_B.max() - spread_B + 1e-9
    chosen: list[Proposal] = []
    free_B = np.ones(len(features_BF), np.bool_)
    while len(chosen) < count and free_B.any():
        most = float(near_B[free_B].max())
        distance_B = near_B / most if most > 0 else np.ones_like(near_B)
        b = int(np.where(free_B, worth_B * distance_B, -1.0).argmax())
        margin = None if margin_B is None else float(margin_B[b])
        chosen.append(Proposal(b, margin, float(distance_B[b]), float(typical_B[b])))
        free_B[b] = False
        to_b_B = np.sqrt(((features_BF - features_BF[b]) ** 2).sum(1))
        near_B = to_b_B if len(chosen) == 1 and not len(labelled_LF) else np.minimum(near_B, to_b_B)
    return chosen


def typicality(features_BF: Floats) -> Floats:
    """From 0 (unlike all others) to 1 (others are equal); one half for the window in the middle.

    By the mean distance to the nearest ``_NEIGHBOURS`` others, against its median.
    """
    others = min(_NEIGHBOURS, len(features_BF) - 1)
    if others < 1:
        return np.ones(len(features_BF))
    near_BN = np.sort(_distances(features_BF, features_BF), axis=1)[:, 1 : 1 + others]
    mean_B = near_BN.mean(axis=1)
    middle = float(np.median(mean_B))
    return middle / (middle + mean_B) if middle > 0 else np.where(mean_B > 0, 0.5, 1.0)


def _distances(a_AF: Floats, b_BF: Floats) -> Floats:
    """Euclidean distances ``d_AB``, without an array of A * B * F."""
    square_AB = (a_AF**2).sum(1)[:, None] + (b_BF**2).sum(1) - 2 * a_AF @ b_BF.T
    return np.asarray(np.sqrt(np.maximum(square_AB, 0.0)), np.float64)


def margins(p_BK: NDArray[np.float32]) -> Floats:
    """Difference of the two highest probabilities of each window; 1 with a single class."""
    if p_BK.shape[1] < 2:  # noqa: PLR2004 - a margin is between two
        return np.ones(len(p_BK))
    two_B2 = np.sort(p_BK.astype(np.float64), axis=1)[:, -2:]
    return two_B2[:, 1] - two_B2[:, 0]


def features(p_BK: NDArray[np.float32] | None, signal_BF: Floats) -> Floats:
    """What windows are compared by: the model's view and the signal; without a model, the signal alone."""
    if p_BK is None:
        return signal_BF
    return np.concatenate([model_features(p_BK), _SIGNAL * signal_BF], axis=1)


def model_features(p_BK: NDArray[np.float32]) -> Floats:
    """The model's view of windows, as features: square roots of its probabilities (Hellinger distance).

    A bundle has no other output: its inner features are not in the ONNX model's interface.
    """
    return np.sqrt(np.clip(p_BK.astype(np.float64), 0, None))


def signal_features(x: Mapping[str, NDArray[np.float32]], present_BM: NDArray[np.bool_]) -> Floats:
    """Features without a model: by channel the mean, the deviation and the mean step, each over its spread.

    Args:
        x: per modality ``x_BCT``, in the order of the columns of ``present_BM``.
        present_BM: availability; a missing modality is as far from all others as the mean.
    """
    columns: list[Floats] = []
    for m, x_BCT in enumerate(x.values()):
        here_B = present_BM[:, m]
        raw_BF = _by_channel(x_BCT.astype(np.float64))
        known_NF = raw_BF[here_B]
        if len(known_NF):
            spread_F = known_NF.std(0)
            scaled_BF = (raw_BF - known_NF.mean(0)) / np.where(spread_F > 0, spread_F, 1.0)
            columns.append(np.where(here_B[:, None], scaled_BF, 0.0) / np.sqrt(raw_BF.shape[1]))
    return np.concatenate(columns, axis=1) if columns else np.zeros((len(present_BM), 1))


def _by_channel(x_BCT: Floats) -> Floats:
    """Mean, deviation and mean step of each channel; of a vector its values."""
    if x_BCT.shape[2] == 1:
        return x_BCT[:, :, 0]
    steps_BC = np.abs(np.diff(x_BCT, axis=2)).mean(2)
    return np.concatenate([x_BCT.mean(2), x_BCT.std(2), steps_BC], axis=1)


def is_good(
    quality_BM: NDArray[np.float32], present_BM: NDArray[np.bool_], least: float
) -> NDArray[np.bool_]:
    """Which windows may be proposed: they have a modality, and none of bad quality."""
    fine_BM = (quality_BM >= least) | ~present_BM
    return np.asarray(fine_BM.all(axis=1) & present_BM.any(axis=1), np.bool_)


def reason(proposal: Proposal, p_K: NDArray[np.float32] | None, labels: Sequence[str]) -> str:
    """Why the label of a window is worth much, in words."""
    why = _why(proposal)
    if p_K is None or proposal.margin is None:
        return f"no model predicts yet, and {why}"
    second, first = np.argsort(p_K)[-2:] if len(p_K) > 1 else (0, 0)
    between = f"{labels[first]} ({p_K[first]:.0%}) and {labels[second]} ({p_K[second]:.0%})"
    if proposal.margin <= _SURE:
        also = f", and {why}" if proposal.distance >= _FAR else ""
        return f"the model hesitates between {between}{also}"
    return f"the model says {labels[first]} ({p_K[first]:.0%}), but {why}"


def _why(proposal: Proposal) -> str:
    """The reason beside the model's."""
    if proposal.distance >= _FAR:
        return "it is unlike every window that has a label"
    if proposal.typical >= _TYPICAL:
        return "many windows without a label are like it"
    return "of the windows that are left its label is worth most"
