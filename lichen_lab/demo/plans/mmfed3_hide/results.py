"""Results of the demo on knowledge graphs, as plain data: ``report.json``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lichen_lab.demo.core.results import Results


@dataclass
class Turn:
    """One gateway in one round."""

    round: int
    triples: int
    """Facts that it learned from."""
    mrr: float | None
    """MRR of its own model, on its own facts that it never trains on."""
    up: int
    """Bytes at the broker for training, without bundles."""
    down: int
    float32: int
    """Bytes of all its rows and projections in float32, one way, without names and headers."""


@dataclass
class GatewayAnswer:
    """One question to a gateway; its answers without known facts, the best first."""

    head: str
    relation: str
    truth: tuple[str, ...]
    """Held-out tails."""
    before: tuple[str, ...] | None = None
    """Answers of its first model; None: it could not answer yet."""
    after: tuple[str, ...] | None = None
    """Answers of its last model."""

    def place(self, given: tuple[str, ...] | None) -> int | None:
        """Rank of the first true tail, from 1; None if there is none among the answers."""
        return next((at for at, tail in enumerate(given or (), 1) if tail in self.truth), None)


@dataclass
class Scores:
    """Filtered metrics on held-out facts, heads and tails."""

    mrr: float
    hits1: float
    hits10: float
    questions: int


@dataclass
class Gateway:
    """One site."""

    name: str
    about: str
    relations: tuple[str, ...]
    entities: int
    """Known at the end."""
    entities_first: int
    """Known from the start."""
    texts: int
    """Entities with text."""
    triples: int
    """Facts from the start."""
    later: int = 0
    """Facts that came while the fleet ran."""
    late: bool = False
    """It joined while the fleet ran."""
    turns: list[Turn] = field(default_factory=list)
    alone: dict[int, float] = field(default_factory=dict)
    """Round -> MRR of the same training without a fleet and without text, as in :attr:`Turn.mrr`."""
    scores: Scores | None = None
    scores_alone: Scores | None = None
    answers: list[GatewayAnswer] = field(default_factory=list)
    model: int | None = None
    """Version of the ONNX model that it runs at the end."""
    starts: int = 0

    @property
    def last(self) -> Turn | None:
        """Its last round."""
        return self.turns[-1] if self.turns else None

    def share(self, part: Callable[[Turn], int]) -> float | None:
        """Bytes over those of float32, all rounds."""
        return _share(self.turns, part)


@dataclass
class SearchOutcome:
    """Outcome of the search in all traffic at the broker."""

    bytes: int
    messages: int
    sought: dict[str, int]
    """Kind of secret -> number."""
    found: tuple[str, ...] = ()
    keys: int = 0
    """Entity keys that occur, which is allowed; they show that the search works."""


@dataclass(kw_only=True)
class GraphResults(Results):
    """All results. A round's ``accuracy`` is the mean MRR of the gateways, weighted by their facts."""

    gateways: list[Gateway] = field(default_factory=list)
    grown_after: int | None = None
    """The round after which a site got further facts."""
    joined_after: int | None = None
    """The round after which the late site was started."""
    entities: int = 0
    """Of the whole graph."""
    bundle: int | None = None
    """Bytes of the ONNX model that all gateways run."""
    searched: SearchOutcome | None = None
    missed: int = 0
    """Messages dropped for lack of room."""
    torch_free: bool | None = None
    """Whether a question was answered on a gateway by an environment without torch."""
    how: str = ""

    def gateway(self, name: str) -> Gateway:
        """By name."""
        return next(one for one in self.gateways if one.name == name)

    @property
    def right(self) -> float | None:
        """Share of questions with a held-out fact among the last answers."""
        asked = [answer for one in self.gateways for answer in one.answers]
        return sum(one.place(one.after) is not None for one in asked) / len(asked) if asked else None

    def share(self, part: Callable[[Turn], int]) -> float | None:
        """Bytes over those of float32, all gateways and rounds."""
        return _share([turn for one in self.gateways for turn in one.turns], part)

    def mean(self, scores: Callable[[Gateway], Scores | None]) -> float | None:
        """MRR over gateways, weighted by questions; None if one was not evaluated."""
        return weighted((one.mrr, one.questions) if one else None for one in map(scores, self.gateways))

    @property
    def mrr(self) -> float | None:
        """MRR of the gateways' last models on held-out facts."""
        return self.mean(lambda one: one.scores)

    @property
    def mrr_alone(self) -> float | None:
        """MRR of gateways trained alone, on the same facts."""
        return self.mean(lambda one: one.scores_alone)


def _share(turns: Sequence[Turn], part: Callable[[Turn], int]) -> float | None:
    whole = sum(turn.float32 for turn in turns)
    return sum(map(part, turns)) / whole if whole else None


def weighted(pairs: Iterable[tuple[float, int] | None]) -> float | None:
    """Weighted mean of (value, weight); None if a pair is missing or the weights are 0."""
    known = list(pairs)
    total = sum(pair[1] for pair in known if pair)
    if None in known or not total:
        return None
    return sum(pair[0] * pair[1] for pair in known if pair) / total
