"""The task of a run, and the evaluation of its devices. Imports torch."""

from collections.abc import Mapping, Sequence

from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import bare_task
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    FIGURES,
    HeldOutFacts,
    KnowledgeGraphFleet,
    MmFed3Setting,
)
from models.contract import Tensors
from models.knowledge_graph.training.ranking import Ranking, pooled
from models.methods.mmfed3_hide.evaluation import ranked
from protocol.tasks.task import Task

_SAME = ("score", "dim", "gamma", "lr", "dense_lr", "batch", "negatives", "epochs")
"""Fields of a setting that are also options of the method."""


def task_of(fleet: KnowledgeGraphFleet, setting: MmFed3Setting, seed: int) -> Task:
    """The fleet's task with the run's options.

    Args:
        fleet: its features.
        setting: of the run.
        seed: of the first embeddings.

    Raises:
        ValidationError: an option of the task does not fit.
    """
    config = {
        **{name: getattr(setting, name) for name in _SAME},
        "warmup_rounds": setting.warmup,
        "validation": 0.0,  # facts to validate with are held out by the study
        **setting.options,
    }
    bare = bare_task(fleet.features)
    changed = {
        "rounds": bare.rounds.model_dump() | {"count": setting.rounds},
        "uplink": {"codec": setting.codec, "error_carry": setting.codec != "float32"},
        "config": config,
        "seed": seed,
    }
    return Task.model_validate(bare.model_dump() | changed)


Private = Mapping[str, Tensors]
"""Device -> its private tensors."""


def valid_mrr(task: Task, judges: Sequence[HeldOutFacts], private: Private) -> float:
    """MRR on all clients' validation facts, heads and tails; a fraction.

    Raises:
        Misconfigured: a device has not trained.
    """
    return pooled([ranked(task, private[j.holder], j.graph, j.valid_N3, (j.known_N3,)) for j in judges]).mrr


def test_figures(task: Task, judges: Sequence[HeldOutFacts], private: Private) -> dict[str, float]:
    """Figures on all clients' test facts, by name of ``settings.FIGURES``."""
    ranking: Ranking = pooled(
        [ranked(task, private[j.holder], j.graph, j.test_N3, (j.known_N3,)) for j in judges]
    )
    return dict(zip(FIGURES, (ranking.mrr, ranking.hits_1, ranking.hits_3, ranking.hits_10), strict=True))
