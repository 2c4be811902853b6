"""What is asked of a run's final state beyond accuracy. Imports torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.qqr.personal import personal
from lichen_lab.benchmarks.studies.qqr.trained import Trained
from models.contract import WindowSet

FILLS: Final = {
    "prototypes": "pnr",
    "mean feature": "mean_feature",
    "zero input": "zero_input",
    "zero feature": "zero_feature",
}
"""What stands for a missing modality at inference: our words -> the option that does it."""


def without(windows: WindowSet, modality: str) -> WindowSet:
    """The windows as they are when one sensor is dead."""
    column = list(windows.x).index(modality)
    present_BM = windows.present_BM.copy()
    present_BM[:, column] = False
    x = {**windows.x, modality: np.zeros_like(windows.x[modality])}
    return replace(windows, x=x, present_BM=present_BM)


def dead_sensor(trained: Trained) -> dict[str, float]:
    """Accuracy (%) with each modality missing in every test window, filled as the run's method does."""
    return {name: trained.accuracy(without(trained.test, name)) for name in trained.task.modality_names}


def fillings(trained: Trained) -> dict[str, float]:
    """The same under each filling: one trained model, several ways at inference."""
    return {
        f"{name}: {words}": trained.accuracy(without(trained.test, name), impute=impute)
        for name in trained.task.modality_names
        for words, impute in FILLS.items()
    }


def unseen_class(trained: Trained) -> dict[str, float]:
    """Recall of the class that no training device held, and the accuracy on the others, in %.

    ``with``: as configured. ``without``: the same state without the nearest-prototype head.
    """
    hidden = trained.spec.conditions.unseen_class
    found = {}
    for words, novel in (("with", True), ("without", False)):
        task = trained.with_options(novel_classes=novel)
        confusion_KK = np.array(
            trained.client.evaluate(task, trained.test, trained.state).confusion_KK, float
        )
        others = [k for k in range(len(confusion_KK)) if k != hidden]
        found[f"others, {words}"] = _share(confusion_KK[others, others].sum(), confusion_KK[others].sum())
        if hidden is not None:
            row_K = confusion_KK[hidden]
            found[f"recall, {words}"] = _share(row_K[hidden], row_K.sum())
    return found


def _share(part: float, whole: float) -> float:
    return float(100 * part / max(whole, 1.0))


Probe = Callable[[Trained], dict[str, float]]
PROBES: Final[dict[str, Probe]] = {
    "dead_sensor": dead_sensor,
    "fillings": fillings,
    "personal": personal,
    "unseen_class": unseen_class,
}
