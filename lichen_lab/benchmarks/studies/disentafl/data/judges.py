"""Classifiers of generated windows: small networks, trained on other real windows of the same modality.

One hidden layer of random weights with ReLU, and a last layer solved by ridge regression on the classes (an
extreme learning machine; G.-B. Huang, Q.-Y. Zhu, C.-K. Siew, Neurocomputing 70, 2006): the same seed gives
the same judge, in a second, without torch. Its accuracy on real windows bounds the score of a generation.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray

HIDDEN: Final = 1500
RIDGE: Final = 10.0


@dataclass(frozen=True)
class RandomFeatureJudge:
    """See the module. ``H`` hidden units, ``N`` values of a window, ``K`` classes.

    Attributes:
        offset: subtracted from a window's values.
        scale: divides them.
        hidden_NH: weights of the hidden layer.
        bias_H: its biases.
        last_HK: weights of the last layer, the last row its bias.
    """

    offset: float
    scale: float
    hidden_NH: FloatArray
    bias_H: FloatArray
    last_HK: FloatArray

    def __call__(self, x_BCT: FloatArray) -> NDArray[np.int64]:
        """(B,) class of each window; -1 if some of its values are not finite."""
        score_BK = self._features(np.nan_to_num(x_BCT, posinf=0.0, neginf=0.0)) @ self.last_HK
        found_B = score_BK.argmax(axis=1).astype(np.int64)
        return np.where(np.isfinite(x_BCT).all(axis=(1, 2)), found_B, -1)

    def _features(self, x_BCT: FloatArray) -> FloatArray:
        flat_BN = (x_BCT.reshape(len(x_BCT), -1) - self.offset) / self.scale
        made_BH = np.maximum(flat_BN @ self.hidden_NH + self.bias_H, 0)
        return np.concatenate([made_BH, np.ones((len(made_BH), 1), np.float32)], axis=1).astype(np.float32)

    @classmethod
    def fitted(
        cls, x_BCT: FloatArray, y_B: NDArray[np.int64], classes: int, seed: int, hidden: int | None = None
    ) -> Self:
        """Train a judge on real windows.

        Args:
            x_BCT: float32, raw units.
            y_B: class of each.
            classes: number of classes.
            seed: of the hidden layer.
            hidden: units of it; None: :data:`HIDDEN`.
        """
        hidden = HIDDEN if hidden is None else hidden
        rng = np.random.default_rng([seed, 7])
        values = x_BCT[0].size
        made = cls(
            offset=float(x_BCT.mean()),
            scale=float(x_BCT.std()) or 1.0,
            hidden_NH=(rng.standard_normal((values, hidden)) / np.sqrt(values)).astype(np.float32),
            bias_H=(0.5 * rng.standard_normal(hidden)).astype(np.float32),
            last_HK=np.zeros((hidden + 1, classes), np.float32),
        )
        features_BH = made._features(x_BCT)
        gram_HH = features_BH.T @ features_BH + RIDGE * np.eye(hidden + 1, dtype=np.float32)
        made.last_HK[:] = np.linalg.solve(gram_HH, features_BH.T @ np.eye(classes, dtype=np.float32)[y_B])
        return made
