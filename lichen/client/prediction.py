"""One prediction, as an agent writes it to ``infer.output`` and to its topic."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LABEL = "label"
"""The target that a line has first; others are in its ``targets``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The prediction for one target.

    Attributes:
        label: the most likely class; of classifications.
        probabilities: of all classes, in the order of the task.
        value: the number; of regressions.
        error: mean square between the generated window and the sensor's, in the modality's scale; of
            generations.
        truth: the true value, if the window was labelled.
    """

    label: str | None = None
    probabilities: tuple[float, ...] = ()
    value: float | None = None
    error: float | None = None
    truth: str | float | None = None

    @property
    def confidence(self) -> float | None:
        """The probability of :attr:`label`."""
        return max(self.probabilities, default=None)


@dataclass(frozen=True, slots=True)
class Found:
    """One answer to a question about a knowledge graph; ``known``: it is already a fact of the device."""

    entity: str
    score: float
    known: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's output for one window, or for one question.

    Attributes:
        source: the device's topic, or the file.
        version: of the model.
        wall: when it was made, Unix seconds of the device.
        latency_ms: since the window closed, or the question came.
        t: end of the window, in the time of its samples; None: a question.
        targets: by name of the target; ``label`` is the task's first.
        present: whether each modality that the model reads was there.
        quality: of each modality, 0 to 1.
        personal: tensors of the device's own training were used.
        question: of a graph: ``head`` or ``tail``, and ``relation``.
        found: answers to it, the best first.
        why: why there is no answer to it, in words.
        retained: the broker had stored it; see ``wall`` for its age.
        line: all of it, as it was written.
    """

    source: str
    version: int
    wall: float
    latency_ms: float
    t: float | None = None
    targets: Mapping[str, Answer] = field(default_factory=dict)
    present: Mapping[str, bool] = field(default_factory=dict)
    quality: Mapping[str, float] = field(default_factory=dict)
    personal: bool = False
    question: Mapping[str, str] = field(default_factory=dict)
    found: tuple[Found, ...] = ()
    why: str = ""
    retained: bool = False
    line: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str | None:
        """The class of the task's first target; None if the model does not predict it."""
        return self._first.label

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of :attr:`label`'s classes."""
        return self._first.probabilities

    @property
    def confidence(self) -> float | None:
        """The probability of :attr:`label`."""
        return self._first.confidence

    @property
    def truth(self) -> str | float | None:
        """The true class, if the window was labelled."""
        return self._first.truth

    @property
    def missing(self) -> tuple[str, ...]:
        """Modalities that the model reads and did not get."""
        return tuple(name for name, there in self.present.items() if not there)

    @property
    def _first(self) -> Answer:
        return self.targets.get(LABEL, Answer())


def parse(line: str | bytes, source: str = "", *, retained: bool = False) -> Prediction:
    """Parse a line or a message's payload. Additions of later releases are only in ``line``.

    Raises:
        ValueError: it is no prediction.
    """
    try:
        fields = json.loads(line)
        return _prediction(fields, source, retained=retained)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a prediction: {error!r}") from None
    except RecursionError:
        raise ValueError("not a prediction: nested too deep") from None


def _prediction(fields: dict[str, Any], source: str, *, retained: bool) -> Prediction:
    others = {name: _answer(one) for name, one in fields.get("targets", {}).items()}
    first = {LABEL: _answer(fields)} if fields.get(LABEL) is not None else {}
    return Prediction(
        source=source,
        version=int(fields["version"]),
        wall=float(fields["wall"]),
        latency_ms=float(fields["latency_ms"]),
        t=_number(fields.get("t")),
        targets=first | others,
        present={name: bool(there) for name, there in fields.get("present", {}).items()},
        quality={name: float(score) for name, score in fields.get("quality", {}).items()},
        personal=bool(fields.get("personal", False)),
        question={key: str(fields[key]) for key in ("head", "relation", "tail") if key in fields},
        found=tuple(
            Found(str(one["entity"]), float(one["score"]), bool(one.get("known", False)))
            for one in fields.get("tails", fields.get("heads", ()))
        ),
        why=str(fields.get("why", "")),
        retained=retained,
        line=fields,
    )


def _answer(fields: dict[str, Any]) -> Answer:
    truth = fields.get("truth")
    return Answer(
        label=None if fields.get("label") is None else str(fields["label"]),
        probabilities=tuple(float(p) for p in fields.get("probabilities") or ()),
        value=_number(fields.get("value")),
        error=_number(fields.get("mse")),
        truth=truth if truth is None or isinstance(truth, str) else float(truth),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
