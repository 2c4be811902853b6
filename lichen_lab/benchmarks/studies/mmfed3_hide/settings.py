"""Settings, fleets and outcomes of the study's runs. Torch-free.

Shapes: E entities, N triples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from lichen_lab.benchmarks.study import run_spec
from models.knowledge_graph.data.graph import IntArray
from models.knowledge_graph.data.keyed import KeyedGraph

Who = Literal["fleet", "alone", "centre"]
OwnRows = Literal["kept", "replaced"]
STRUCTURE: Final[Mapping[str, Any]] = {"fusion": "structure", "imputer": "none", "dual": False}
"""Options that use only the graph's structure."""
_AFTER: Final = frozenset(
    {
        *STRUCTURE,
        *("fusion_weight", "impute", "hide_share", "steps", "gradient_steps", "denoiser", "noise_scale"),
        *("logits", "logits_way", "feature", "prox", "contrast", "temperature"),
    }
)
"""Options without effect on a warm start."""
METHOD: Final = "mmfed3_hide"
"""The product's method, which all runs use."""
FIGURES: Final = ("mrr", "hits1", "hits3", "hits10")


@dataclass(frozen=True)
class GraphConditions:
    """How facts and features are spread over clients.

    Attributes:
        clients: number of clients that share the relations.
        rate: r, the share of entities with features on a client, for each modality.
        who: ``fleet``: clients share entities through the coordinator; ``alone``: each client learns alone;
            ``centre``: one device has all training facts and features of the clients.
        uneven: alpha of the Dirichlet distribution by which an entity's words and numbers are dealt to the
            clients that have it, so that its features differ between them (the paper's Section III-B, .1);
            0: every client has all of them.
        own_rows: a device's own embeddings with ``dual``: ``kept`` from round to round, or ``replaced`` by
            the fleet's when a round begins (the paper's Algorithm 2, line 5).
    """

    clients: int = 3
    rate: float = 0.5
    who: Who = "fleet"
    uneven: float = 0.0
    own_rows: OwnRows = "kept"


@dataclass(frozen=True, eq=False)
class HeldOutFacts:
    """One client's held-out facts, and the device that answers them.

    Attributes:
        holder: the device whose embeddings answer.
        graph: the client's entities and relations by key; candidate answers are its entities.
        valid_N3: validation facts, in that graph's indices.
        test_N3: test facts, likewise.
        known_N3: all facts of the client; other correct answers are filtered.
    """

    holder: str
    graph: KeyedGraph
    valid_N3: IntArray
    test_N3: IntArray
    known_N3: IntArray


@dataclass(frozen=True, eq=False)
class KnowledgeGraphFleet:
    """Devices with a graph each.

    Attributes:
        name: of the graph.
        deal: equal for fleets whose devices have the same facts, whatever their features.
        features: modality -> width of its features.
        devices: graphs by device, in a fixed order.
        judges: held-out facts of each client.
        apart: whether devices share nothing.
        replaced: whether devices' own embeddings are replaced by the fleet's when a round begins.
    """

    name: str
    deal: str
    features: Mapping[str, int]
    devices: Mapping[str, KeyedGraph]
    judges: tuple[HeldOutFacts, ...]
    apart: bool = False
    replaced: bool = False


@dataclass(frozen=True)
class MmFed3Setting:
    """Training, equal for all methods, and the options of one method.

    Attributes:
        rounds: number of rounds, including the warm start.
        warmup: number of first rounds that use only structure: the same start for every method.
        epochs: of a device in a round.
        score: f, the score function of triples.
        dim: D, width of an entity's embedding.
        gamma: margin.
        lr: learning rate of embeddings.
        dense_lr: learning rate of projections, fusion and imputer.
        batch: questions a step.
        negatives: K, shared by a batch.
        codec: of an update's numbers.
        look_every: rounds between two evaluations on validation and test facts.
        cpu_s: limit of CPU seconds in training and folding, after which no round begins; None: no limit.
        options: of the method (``models.methods.mmfed3_hide.MmFed3Config``).
    """

    rounds: int = 36
    warmup: int = 0
    epochs: int = 3
    score: str = "rotate"
    dim: int = 64
    gamma: float = 12.0
    lr: float = 0.03
    dense_lr: float = 0.001
    batch: int = 1024
    negatives: int = 256
    codec: str = "int8"
    look_every: int = 2
    cpu_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def start(self) -> Self:
        """The setting of its warm start, equal for methods with the same warm start."""
        same = {name: value for name, value in self.options.items() if name not in _AFTER}
        return replace(
            self, rounds=self.warmup, dense_lr=1.0, look_every=1, cpu_s=None, options={**same, **STRUCTURE}
        )


@dataclass(frozen=True)
class Look:
    """Evaluation of one version.

    Attributes:
        round: the round that made the version.
        cpu_s: CPU seconds spent so far in training and folding.
        valid: MRR on the clients' validation facts.
        test: figure -> value on their test facts, as fractions.
    """

    round: int
    cpu_s: float
    valid: float
    test: Mapping[str, float]


@dataclass(frozen=True)
class MmFed3Run(run_spec.RunSpec[MmFed3Setting, GraphConditions]):
    """A run; ``fleet`` is a graph of ``mmfed3_hide.fleets``, methods differ in options."""

    method: str = METHOD
    setting: MmFed3Setting = MmFed3Setting()
    conditions: GraphConditions = GraphConditions()

    def tiny(self) -> Self:
        """A short round or two of few entities."""
        few = replace(
            self.setting, rounds=2, warmup=min(1, self.setting.warmup), epochs=1, dim=16, cpu_s=None
        )
        return replace(self, setting=few, small=True)


@dataclass(frozen=True)
class MmFed3Outcome(run_spec.RunOutcome):
    """Outcome of a run.

    Attributes:
        looks: evaluations in the order of rounds.
        bytes_up: mean payload bytes up of a device and round.
        bytes_down: likewise down.
        bytes_whole: bytes of all rows and projections of a device in float32, mean over devices.
        triples_s: triples a second of local training after the warm start; each gives two questions.
        refused: number of refused updates.
    """

    looks: list[Look]
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    bytes_whole: float = 0.0
    triples_s: float = 0.0
    refused: int = 0

    @property
    def best(self) -> Look:
        """The evaluation with the best validation MRR, where the paper's runs stop."""
        return max(self.looks, key=lambda look: look.valid)

    def within(self, cpu_s: float) -> Look | None:
        """The best evaluation within a CPU limit, or None."""
        early = [look for look in self.looks if look.cpu_s <= cpu_s]
        return max(early, key=lambda look: look.valid) if early else None
