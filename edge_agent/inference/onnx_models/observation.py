"""What a batch showed of the models that saw it: a rollout's health window and the figures read it.

Shapes: B windows or questions, K classes of a target, or answers to a question, C channels, T samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.bundle import BundleManifest

TAILS = "tails"
"""A knowledge-graph model's only key of :attr:`Seen.answers`: ``tails_BK``, rows of the device's entities."""

Answers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class BatchObservation:
    """One batch: what the model said, and what its shadow said of the same.

    Attributes:
        digest: of the model's bundle.
        manifest: of the model.
        count: windows or questions that it was asked; only such with a modality that it reads.
        latency_s: from the question to its answer, of the whole batch; until the failure, where it failed.
        error: why there are no answers, in words; empty where there are.
        answers: by target ``(B, K)``, ``(B,)`` or ``(B, C, T)`` (``LoadedModel.predict``), or
            :data:`TAILS`. Finite. Empty where there was an error.
        y_B: the true class of the target ``label`` for each window; -1 where it is not known.
        before: the shadow's answers to the same; None where there is no shadow, it failed, or there was no
            time for it.
        before_error: why the shadow, which was asked, has no answers, in words.
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


def rows(answers: Answers | None) -> int:
    """Windows or questions that were answered."""
    return max((len(answer) for answer in (answers or {}).values()), default=0)
