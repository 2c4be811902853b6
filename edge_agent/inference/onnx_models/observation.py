"""Observation of a batch: answers and times of the model and its shadow, for a trial and the statistics.

Shapes: B windows or questions, K classes of a target, or answers to a question, C channels, T samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.bundle import BundleManifest

TAILS = "tails"
"""A knowledge-graph model's only key of :attr:`BatchObservation.answers`: ``tails_BK``, rows of the device's
entities."""

Answers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class BatchObservation:
    """One batch: the answers of the model, and of its shadow to the same input.

    Attributes:
        digest: of the model's bundle.
        manifest: of the model.
        count: windows or questions given to the model; only those with a modality that it reads.
        latency_s: from the call to its answer, of the whole batch; or to its failure.
        error: why there are no answers; empty if there are.
        answers: by target ``(B, K)``, ``(B,)`` or ``(B, C, T)`` (``LoadedModel.predict``), or :data:`TAILS`.
            Finite. Empty after an error.
        y_B: the true class of the target ``label`` for each window; -1 if unknown.
        before: the shadow's answers to the same; None without a shadow, after its failure, or if there was no
            time.
        read_NR: which modalities the model read in each window, in the manifest's order; None: no windows.
        before_error: why the shadow gave no answers when it was called.
        before_latency_s: as ``latency_s``, of the shadow.
        before_manifest: of the shadow.
    """

    digest: str
    manifest: BundleManifest
    count: int
    latency_s: float
    error: str = ""
    answers: Answers = field(default_factory=dict)
    y_B: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    before: Answers | None = None
    before_latency_s: float | None = None
    before_manifest: BundleManifest | None = None
    before_error: str = ""
    read_NR: NDArray[np.bool_] | None = None


def rows(answers: Answers | None) -> int:
    """Answered windows or questions."""
    return max((len(answer) for answer in (answers or {}).values()), default=0)
