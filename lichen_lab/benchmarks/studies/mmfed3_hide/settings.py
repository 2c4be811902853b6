"""What a run of the study is given, and what it leaves. Torch-free.

Shapes: E entities, N triples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from lichen_lab.benchmarks.study import run_spec
from models.knowledge_graph.data.graph import IntArray
from models.knowledge_graph.data.keyed import KeyedGraph

Who = Literal["fleet", "alone", "centre"]
STRUCTURE: Final[Mapping[str, Any]] = {"fusion": "structure", "imputer": "none", "dual": False}
"""Options of the structure alone."""
_AFTER: Final = frozenset(
    {
        *STRUCTURE,
        *("impute", "hide_share", "steps", "gradient_steps"),
        *("logits", "logits_way", "feature", "prox", "contrast", "temperature"),
    }
)
"""Options that a warm start does not read."""
METHOD: Final = "mmfed3_hide"
"""The product's, of all runs."""
FIGURES: Final = ("mrr", "hits1", "hits3", "hits10")


@dataclass(frozen=True)
class GraphConditions:
    """Who has which facts and features.

    Attributes:
        clients: among whom relations are dealt.
        rate: r, the share of entities whose features a client has, of each modality.
        who: ``fleet``: clients share entities through the coordinator; ``alone``: each learns by itself;
            ``centre``: one device has all facts that clients train on, and any feature that one of them has.
    """

    clients: int = 3
    rate: float = 0.5
    who: Who = "fleet"


@dataclass(frozen=True, eq=False)
class HeldOutFacts:
    """What one client's facts ask, and of whom.

    Attributes:
        holder: the device whose embeddings answer.
        graph: the client's entities and relations, by key; rivals of an answer are its entities alone.
        valid_N3: in that graph's indices.
        test_N3: likewise.
        known_N3: all facts of the client: other answers that do not count.
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
        name: of the graph that was dealt.
        deal: the same where devices have the same facts, whatever their features.
        features: modality -> numbers of a feature.
        devices: by name, in a fixed order.
        judges: one a client.
        apart: devices share nothing.
    """

    name: str
    deal: str
    features: Mapping[str, int]
    devices: Mapping[str, KeyedGraph]
    judges: tuple[HeldOutFacts, ...]
    apart: bool = False


@dataclass(frozen=True)
class MmFed3Setting:
    """What every method is given, and the options of one.

    Attributes:
        rounds: of the fleet, the warm start among them.
        warmup: first rounds, of structure alone: the same start for every method.
        epochs: of a device in a round.
        score: f.
        dim: D, numbers of an entity.
        gamma: the margin.
        lr: of embeddings.
        dense_lr: of projections, fusion and imputer.
        batch: questions a step.
        negatives: K, shared by a batch.
        codec: of an update's numbers.
        look_every: rounds between two looks at validation and test facts.
        cpu_s: no further round begins after so many seconds of CPU in training and folding; None: all do.
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
        """What its warm start depends on: the same for methods that differ in nothing else."""
        same = {name: value for name, value in self.options.items() if name not in _AFTER}
        return replace(
            self, rounds=self.warmup, dense_lr=1.0, look_every=1, cpu_s=None, options={**same, **STRUCTURE}
        )


@dataclass(frozen=True)
class Look:
    """What a version was worth.

    Attributes:
        round: after it.
        cpu_s: spent by then in training and folding.
        valid: MRR on the clients' validation facts.
        test: figure -> value on their test facts, fractions.
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
    """What a run leaves.

    Attributes:
        looks: in the order of rounds.
        bytes_up: payload bytes of a device and round, mean over all rounds.
        bytes_down: of what a device fetches in one, likewise.
        bytes_whole: of all a device's rows and projections in float32, mean over devices.
        triples_s: triples a second of local training, after the warm start; each is asked both ways.
        refused: updates that were not taken.
    """

    looks: list[Look]
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    bytes_whole: float = 0.0
    triples_s: float = 0.0
    refused: int = 0

    @property
    def best(self) -> Look:
        """The look at which validation facts were answered best: where the paper's runs stop."""
        return max(self.looks, key=lambda look: look.valid)

    def within(self, cpu_s: float) -> Look | None:
        """The best of those that no more CPU was spent on; None where there is none."""
        early = [look for look in self.looks if look.cpu_s <= cpu_s]
        return max(early, key=lambda look: look.valid) if early else None
