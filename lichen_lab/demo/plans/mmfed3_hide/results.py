"""What the demo on knowledge graphs has seen, as plain data: ``report.json``."""

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
    """Of its own model, on facts of its own that never train."""
    up: int
    """Bytes at the broker for learning; downloads of models to predict with are not counted."""
    down: int
    float32: int
    """What all its rows and projections would take one way in float32: no names, no headers."""


@dataclass
class ObserverAnswer:
    """One question to a gateway; answers without those that it knows already, the best first."""

    head: str
    relation: str
    truth: tuple[str, ...]
    """Tails that nobody told it."""
    before: tuple[str, ...] | None = None
    """By its first model; None: it could not answer yet."""
    after: tuple[str, ...] | None = None
    """By its last one."""

    def place(self, given: tuple[str, ...] | None) -> int | None:
        """Of the first true tail, from 1; None where there is none among the answers."""
        return next((at for at, tail in enumerate(given or (), 1) if tail in self.truth), None)


@dataclass
class Scores:
    """On facts that nobody was told: filtered, heads and tails."""

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
    """That it knows at the end."""
    entities_first: int
    """That it knew from the start."""
    texts: int
    """Entities whose text it has."""
    triples: int
    """Facts from the start."""
    later: int = 0
    """Facts that it was told while the fleet ran."""
    late: bool = False
    """Joined while the fleet ran."""
    turns: list[Turn] = field(default_factory=list)
    alone: dict[int, float] = field(default_factory=dict)
    """Round -> MRR of the same training without a fleet and without text, as in :attr:`Turn.mrr`."""
    scores: Scores | None = None
    scores_alone: Scores | None = None
    answers: list[ObserverAnswer] = field(default_factory=list)
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
class Searched:
    """What was looked for in all that went over the broker."""

    bytes: int
    messages: int
    sought: dict[str, int]
    """Kind of secret -> how many of them."""
    found: tuple[str, ...] = ()
    keys: int = 0
    """Keys of entities that were seen, which is allowed: that the search can find something."""


@dataclass(kw_only=True)
class GraphStory(Results):
    """Everything. A round's ``accuracy`` is the mean MRR of the gateways, weighted by their facts."""

    gateways: list[Gateway] = field(default_factory=list)
    grown_after: int | None = None
    """The round after which a site was told more."""
    joined_after: int | None = None
    """The round after which the late site was started."""
    entities: int = 0
    """Of the whole graph."""
    bundle: int | None = None
    """Bytes of the ONNX model that all gateways run."""
    searched: Searched | None = None
    missed: int = 0
    """Messages that the onlooker had no room for."""
    torch_free: bool | None = None
    """Whether a question was answered on a gateway by an environment without torch."""
    how: str = ""

    def gateway(self, name: str) -> Gateway:
        """By name."""
        return next(one for one in self.gateways if one.name == name)

    @property
    def right(self) -> float | None:
        """Of all questions, those with a held-out fact among the last answers."""
        asked = [answer for one in self.gateways for answer in one.answers]
        return sum(one.place(one.after) is not None for one in asked) / len(asked) if asked else None

    def share(self, part: Callable[[Turn], int]) -> float | None:
        """Bytes over those of float32, all gateways and rounds."""
        return _share([turn for one in self.gateways for turn in one.turns], part)

    def mean(self, scores: Callable[[Gateway], Scores | None]) -> float | None:
        """MRR over gateways, each weighted by its questions; None where one was not judged."""
        return weighted((one.mrr, one.questions) if one else None for one in map(scores, self.gateways))

    @property
    def mrr(self) -> float | None:
        """Of the gateways' last models, on facts that nobody was told."""
        return self.mean(lambda one: one.scores)

    @property
    def mrr_alone(self) -> float | None:
        """Of each gateway by itself, on the same facts."""
        return self.mean(lambda one: one.scores_alone)


def _share(turns: Sequence[Turn], part: Callable[[Turn], int]) -> float | None:
    whole = sum(turn.float32 for turn in turns)
    return sum(map(part, turns)) / whole if whole else None


def weighted(pairs: Iterable[tuple[float, int] | None]) -> float | None:
    """The mean of (value, weight); None where a pair is missing or nothing weighs."""
    known = list(pairs)
    total = sum(pair[1] for pair in known if pair)
    if None in known or not total:
        return None
    return sum(pair[0] * pair[1] for pair in known if pair) / total
