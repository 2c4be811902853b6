"""MMFeD3-HidE: devices complete their knowledge graphs and share unnamed entities. Torch-free.

A device learns from a private knowledge graph (triples, and features of some entities in several modalities).
It sends what its entities' structural embeddings and the features' projections learned; entities are known to
the coordinator by keyed hashes alone. Relations, features, fusion and imputation stay. Where the paper leaves
a
choice:

- An entity that the coordinator has no row of begins at values that follow from its key
  (``models.knowledge_graph.data.initial_embeddings``), so that devices start a shared entity alike. A device
  that brings an entity
  which others have already gets the fleet's row after that round; what it learned of it before is not folded,
  and does not wait either.
- Quantization and rows that wait leave a carry; a device begins its next round from the fleet's rows plus its
  carry, so nothing is lost and nothing counts twice.
- The first ``warmup_rounds`` learn structure alone (FedE), the start that the paper gives its own method; the
  same for every other recipe.
- Gated fusion starts at zero: the structure alone, until a modality is seen to help. The paper's is
  ``weighted``.
- Of modalities that are there, a share is hidden from an imputer while it learns: shown all, nothing teaches
  it to make a part out of others. 0 is the paper's.
- An imputer's widths follow the entities' dim: D, D / 2, D / 4.
- A device's model is judged on triples of its own that never train, chosen by their keys.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.spec import MethodSpec
from protocol.base import Frozen
from protocol.frames.tensors import Codec
from protocol.tasks.task import Task

Rate = Annotated[float, Field(gt=0, le=10)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Rounds = Annotated[int, Field(ge=0, le=100_000)]
_KEY_BYTES = 16


class MmFed3Config(Frozen):
    """Options of the task's ``config`` table. Recipes of the paper's comparison are combinations of them."""

    score: Literal["rotate", "transe", "complex"] = "rotate"
    dim: Annotated[int, Field(ge=4, le=4096)] = 128
    """D, of an entity; complex numbers count twice. 512."""
    gamma: Annotated[float, Field(gt=0, le=1000)] = 12.0
    """The margin; it sets the span of the first values, ``(gamma + 2)`` over the numbers of a vector."""
    fusion: Literal["average", "concat", "gated", "gated_average", "split", "structure", "weighted"] = "gated"
    """Phi. ``structure`` reads no features (FedE, S-Ind); ``weighted`` is the paper's."""
    fusion_weight: Annotated[float, Field(ge=0, lt=1)] | None = None
    """With ``weighted``: the fixed weight of all modalities together, the rest is the structure's; none:
    weights are trained."""
    imputer: Literal["none", "hide", "cra", "ae", "mmin"] = "hide"
    """What stands in for modalities that an entity lacks."""
    impute: Weight = 0.1
    """lambda of (12)."""
    hide_share: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Not in the paper: with this probability a modality is hidden from the imputer while it learns."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """T of the diffusion; the paper names none."""
    denoiser: Literal["cra", "ae", "mlp", "mha"] = "cra"
    """The network of ``hide`` that removes noise; the paper's is ``cra``."""
    noise_scale: Annotated[float, Field(gt=0, le=10)] = 1e-4
    """s of the diffusion: of its betas, which rise from 5e-4 to 5e-2. 1e-4."""
    gradient_steps: Annotated[int, Field(ge=0, le=1000)] | None = 1
    """Gradients flow through so many last steps of the way back; none: through all, the paper's, at about
    twice the time."""
    dual: bool = True
    """A device holds, beside its own embeddings, a copy of the fleet's: that one learns and travels, too
    (MMFeD3, MMFedLU). Off: its embeddings are the fleet's (MMFedE)."""
    logits: Weight = 1.0
    """mu of (12); only with ``dual``."""
    logits_way: Literal["both", "up"] = "both"
    """(10): each side learns of the other; ``up``: the fleet's copy of the device's own side (MMFedLU)."""
    feature: Weight = 0.01
    """eta of (12); only with ``dual``."""
    prox: Weight = 0.0
    """Weight of the distance to what the fleet had (MMFedProx); not with ``dual``."""
    contrast: Weight = 0.0
    """Weight of the contrast with the embedding of the round before (MMFedEC); not with ``dual``."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 0.2
    """tau of that contrast."""
    negatives: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """K. 256."""
    negatives_of: Literal["batch", "question"] = "batch"
    """Whether a batch shares its negatives. ``question``, each its own, is the paper's, and ten to twenty
    times slower."""
    batch: Annotated[int, Field(ge=2, le=1_000_000)] = 1024
    """Questions a step; a triple asks two. 1,024."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    """3."""
    warmup_rounds: Rounds = 0
    """Rounds of structure alone before all else."""
    lr: Rate = 0.03
    """Of embeddings, Adam's; in round n it is ``max(lr_min, lr * lr_decay ** (n - 1))``."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    lr_min: Rate = 1e-4
    dense_lr: Rate = 0.001
    """Of projections, fusion and imputer; it falls with ``lr``, as a share of it."""
    dense_decay: Annotated[float, Field(ge=0, lt=1000)] = 0.0
    """Their pull towards zero, times the step."""
    keep_moments: bool = True
    """Adam's running means stay on the device from round to round (twice the tables' size on its disk)."""
    rows_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of its rows, those with the largest change travel; the others' change waits in the carry."""
    validation: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share of a device's triples that never train and judge its model. 0: it is not judged."""
    judged: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Of these, at most so many are asked in a round."""
    max_delta: Annotated[float, Field(gt=0, le=64)] = 64.0
    """An update in which any value moved further is refused. No more than 64: sums of as many projections as
    there may be devices stay exact, each by its triples."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.dim % 2:
            raise ValueError(f"dim {self.dim} is odd; entities are complex numbers, stored as two halves")
        if self.fusion_weight is not None and self.fusion != "weighted":
            raise ValueError(f'fusion_weight: only with fusion = "weighted", not with {self.fusion!r}')
        if self.dual and (self.prox or self.contrast):
            raise ValueError(
                "prox, contrast: only with dual = false, where the fleet's embeddings stand still"
            )
        if self.lr_min > self.lr:
            raise ValueError(f"lr_min {self.lr_min} is above lr {self.lr}")
        return self

    @property
    def span(self) -> float:
        """First values of entities and relations are even in ``[-span, span]`` (``triple_scores``)."""
        return (self.gamma + 2.0) / (self.dim if self.score == "transe" else self.dim // 2)


def config_of(task: Task) -> MmFed3Config:
    """The task's options, checked.

    Raises:
        Misconfigured: as :meth:`models.spec.MethodSpec.configure`.
    """
    return METHOD.configure(task)


def _beyond(task: Task) -> int:
    """Elements of an update beside the projections': rows and keys of a device's entities, and the bitmap."""
    return (task.graph.max_entities if task.graph else 0) * (config_of(task).dim + _KEY_BYTES + 1)


METHOD = MethodSpec(
    name="mmfed3_hide",
    title="Federated completion of multimodal knowledge graphs by imputation diffusion and dual distillation",
    paper="Zhang et al., Hyper-modal Imputation Diffusion Embedding with Dual-Distillation for Federated "
    "Multimodal Knowledge Graph Completion",
    config=MmFed3Config,
    needs_labels=False,
    material="graph",
    owned=("rows",),
    one_model=True,
    codecs={"keys": Codec.UINT8, "value": Codec.FLOAT16},
    bounded=("keys",),
    optimised=("projection",),
    rounded=("projection",),  # rows are a device's own, half precision, and new in every round
    beyond=_beyond,
    robust_folds=False,
    reported=("mrr", "hits1", "hits10"),
    symbols={
        "C": "devices",
        "E_c, R_c, T_c": "KeyedGraph",
        "M": "present_EP",
        "S^s": "rows/<device>",
        "P_c": "rows/<device>/keys",
        "W_m": "projection/<modality>",
        "S^c, R^c": "own/structure, own/relations",
        "E_hat^c": "own/entities",
        "Phi": "fusion",
        "theta": "imputer",
        "T": "steps",
        "lambda, mu, eta": "impute, logits, feature",
        "N_i": "negatives",
    },
)
