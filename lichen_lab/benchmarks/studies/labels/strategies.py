"""Which windows' labels are asked for: the device's own rule, its parts alone, and rules of the literature.

All see the same candidates and give as many of them. Torch-free.

- ``margin``: T. Scheffer, C. Decomain, S. Wrobel, Active Hidden Markov Models for Information Extraction, IDA
  2001: margin sampling.
- ``coreset``: O. Sener, S. Savarese, Active Learning for Convolutional Neural Networks, ICLR 2018, the greedy
  k-center.
- ``badge``: J. Ash et al., Deep Batch Active Learning by Diverse, Uncertain Gradient Lower Bounds, ICLR 2020.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.labels import proposals

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
_LEAST: Final = 0.05
"""Hesitation of a window of which the model is sure."""


LINEAR: Final = "linear-"
"""Before a rule's name: the run with a linear classifier (``linear``)."""


@dataclass(frozen=True)
class LabelChoice:
    """What a rule may look at, at one session of one device.

    Attributes:
        candidates_B: places in the pool.
        labelled_L: places that have a label.
        p_PK: the present model's probabilities of all P windows of the pool; None: no model yet.
        signal_PF: simple features of the signal.
        inner_PD: the network's last features before the classes; a bundle does not have them. None: no model.
        count: labels to ask for.
        rng: of random numbers.
    """

    candidates_B: Places
    labelled_L: Places
    p_PK: NDArray[np.float32] | None
    signal_PF: Floats
    inner_PD: Floats | None
    count: int
    rng: np.random.Generator


def random(choice: LabelChoice) -> Places:
    """As many, drawn evenly."""
    return choice.rng.permutation(choice.candidates_B)[: choice.count]


def asked(choice: LabelChoice) -> Places:
    """What the device proposes."""
    new_B, p_PK = choice.candidates_B, choice.p_PK
    features_PF = proposals.features(p_PK, choice.signal_PF)
    p_BK = None if p_PK is None else p_PK[new_B]
    found = proposals.choose(p_BK, features_PF[new_B], features_PF[choice.labelled_L], choice.count)
    return new_B[[one.index for one in found]]


def before(choice: LabelChoice) -> Places:
    """The device's rule without typicality and without the signal, as it was before this study."""
    if choice.p_PK is None:
        return signal(choice)
    return _k_center(choice, proposals.model_features(choice.p_PK), _hesitation(choice.p_PK))


def margin(choice: LabelChoice) -> Places:
    """The smallest margins; without a model, random."""
    if choice.p_PK is None:
        return random(choice)
    order_B = np.argsort(proposals.margins(choice.p_PK[choice.candidates_B]), kind="stable")
    return choice.candidates_B[order_B[: choice.count]]


def distance(choice: LabelChoice) -> Places:
    """The device's distance alone."""
    return _k_center(choice, proposals.features(choice.p_PK, choice.signal_PF))


def coreset(choice: LabelChoice) -> Places:
    """Greedy k-center on the network's last features; without a model, on those of the signal."""
    return _k_center(choice, choice.signal_PF if choice.inner_PD is None else choice.inner_PD)


def signal(choice: LabelChoice) -> Places:
    """Greedy k-center on features of the signal."""
    return _k_center(choice, choice.signal_PF)


def badge(choice: LabelChoice) -> Places:
    """k-means++ on the gradients of the last layer for the likeliest class; without a model, random."""
    if choice.p_PK is None or choice.inner_PD is None:
        return random(choice)
    p_BK = choice.p_PK[choice.candidates_B].astype(np.float64)
    error_BK = p_BK - np.eye(p_BK.shape[1])[p_BK.argmax(axis=1)]
    inner_BD = choice.inner_PD[choice.candidates_B]
    gradient_BG = (error_BK[:, :, None] * inner_BD[:, None, :]).reshape(len(p_BK), -1)
    chosen = [int((gradient_BG**2).sum(axis=1).argmax())]
    near_B = np.full(len(p_BK), np.inf)
    while len(chosen) < min(choice.count, len(p_BK)):
        near_B = np.minimum(near_B, ((gradient_BG - gradient_BG[chosen[-1]]) ** 2).sum(axis=1))
        near_B[chosen] = 0
        total = near_B.sum()
        free_B = np.delete(np.arange(len(p_BK)), chosen)
        drawn = choice.rng.choice(len(p_BK), p=near_B / total) if total > 0 else choice.rng.choice(free_B)
        chosen.append(int(drawn))
    return choice.candidates_B[chosen]


def _hesitation(p_PK: NDArray[np.float32]) -> Floats:
    return np.maximum(_LEAST, 1 - proposals.margins(p_PK))


def _k_center(choice: LabelChoice, features_PF: Floats, worth_P: Floats | None = None) -> Places:
    """One after the other, the candidate with the greatest product of worth and distance to a label."""
    new_B, f_BF = choice.candidates_B, features_PF[choice.candidates_B]
    worth_B = np.ones(len(new_B)) if worth_P is None else worth_P[new_B]
    centers = [*features_PF[choice.labelled_L]]
    near_B = np.full(len(new_B), np.inf)
    for center_F in centers:
        near_B = np.minimum(near_B, np.linalg.norm(f_BF - center_F, axis=1))
    chosen: list[int] = []
    while len(chosen) < min(choice.count, len(new_B)):
        if np.isinf(near_B).any():  # nothing is labelled: the one in the middle is first
            spread_B = np.linalg.norm(f_BF - f_BF.mean(axis=0), axis=1)
            score_B = worth_B * (spread_B.max() - spread_B + 1e-9)
        else:
            score_B = worth_B * near_B
        score_B[chosen] = -1
        chosen.append(int(score_B.argmax()))
        near_B = np.minimum(near_B, np.linalg.norm(f_BF - f_BF[chosen[-1]], axis=1))
    return new_B[chosen]


STRATEGIES: Final[Mapping[str, Callable[[LabelChoice], Places]]] = {
    rule.__name__: rule for rule in (asked, random, before, margin, distance, coreset, badge)
}
"""By name."""
