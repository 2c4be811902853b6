"""Synthetic runs of ``lichen bench mmfed3_hide``, and a small fleet of a synthetic graph."""

import numpy as np

from lichen_lab.benchmarks.studies.mmfed3_hide import fleets
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    FIGURES,
    GraphConditions,
    KnowledgeGraphFleet,
    Look,
    MmFed3Outcome,
    MmFed3Run,
    MmFed3Setting,
)
from tests.support.methods.graph_cases import random_graph

TINY = MmFed3Setting(rounds=3, warmup=1, epochs=1, dim=8, batch=64, negatives=8, look_every=1)


def made_up(one: MmFed3Run, best: float | None = None) -> MmFed3Outcome:
    """An outcome that depends only on the run."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)
    mrr = float(rng.uniform(0.3, 0.5)) if best is None else best
    looks = [
        Look(at, 60.0 * at, valid, dict.fromkeys(FIGURES, worth))
        for at, valid, worth in ((1, 0.1, 0.2), (2, 0.3, mrr), (3, 0.2, 0.9))
    ]
    return MmFed3Outcome(looks, bytes_up=30.0, bytes_down=50.0, bytes_whole=200.0, triples_s=1.0, seconds=1.0)


def small_fleet(**conditions: object) -> KnowledgeGraphFleet:
    """Three clients of a random graph."""
    return fleets.dealt(random_graph(), "made", 0, GraphConditions(**conditions))  # type: ignore[arg-type]  # its own fields


def quiet(_line: str) -> None:
    """The callback for the progress of a run."""
