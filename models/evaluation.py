"""From predictions to an Evaluation. Torch-free."""

import numpy as np
from numpy.typing import NDArray

from models.contract import Evaluation
from protocol.errors import Misconfigured


def judge(true_B: NDArray[np.int64], probabilities_BK: NDArray[np.float32]) -> Evaluation:
    """Accuracy, macro F1 (over classes that occur or are predicted) and log loss of labelled windows.

    Raises:
        Misconfigured: there is no labelled window to judge on.
    """
    labelled = true_B >= 0
    y, p_BK = true_B[labelled], probabilities_BK[labelled]
    if not len(y):
        raise Misconfigured("evaluation.data holds no labelled window (y is -1 everywhere)")
    classes = p_BK.shape[1]
    confusion = np.bincount(y * classes + p_BK.argmax(axis=1), minlength=classes**2).reshape(classes, classes)
    hits = confusion.diagonal()
    involved = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = involved > 0
    metrics = {
        "accuracy": float(hits.sum() / len(y)),
        "macro_f1": float((2 * hits[occurs] / involved[occurs]).mean()),
        "loss": float(-np.log(np.maximum(p_BK[np.arange(len(y)), y], 1e-12)).mean()),
        "windows": float(len(y)),
    }
    return Evaluation(metrics=metrics, confusion_KK=confusion.tolist())
