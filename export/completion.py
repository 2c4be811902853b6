"""Models that complete knowledge graphs: export, and the parity gate.

The ONNX model has no weights and takes entity and relation embeddings as inputs, so the gate generates
tables: of several sizes (one entity, fewer than the answers, many), with equal or duplicate entities, for
several batch sizes, relations and their inverses.

Shapes: B questions, E entities, X relations with their inverses, V views, K answers.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as _ort
from torch import Tensor, nn

from export.onnx_graph import EXAMPLE_BATCH, serialized
from export.parity.cases import BATCHES
from export.parity.gate import session
from export.parity.tolerances import LOGIT_TOLERANCE
from protocol.bundle import COMPLETION_INPUTS, COMPLETION_OUTPUTS, Completion
from protocol.errors import Misconfigured, Reason, Refused

MANY: Final = 200
"""Entities of the largest table, beyond the number of answers."""
_RELATIONS: Final = 6
"""X: three, and their inverses."""
_LENGTH: Final = 3.0
"""Approximate scale of an entity's embedding."""
_SEED: Final = 20_260
_TIMED_RUNS: Final = 30

Feeds = dict[str, NDArray[Any]]


class Completing(Protocol):
    """Interface of a method's inference module to the gate."""

    shape: Completion

    def __call__(
        self, head_B: Tensor, relation_B: Tensor, e_EVD: Tensor, r_X: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``tails_BK``, ``scores_BK``."""

    def scores(self, head_B: Tensor, relation_B: Tensor, e_EVD: Tensor, r_X: Tensor) -> Tensor:
        """``s_BE``."""


@dataclass(frozen=True)
class CompletionParity:
    """Measurements of the gate.

    Attributes:
        cases: pairs of a table and a batch size.
        entities: E of the tables.
        tolerance: relative to ``1 + |score|``.
        max_difference: in that measure, of scores, and of torch's scores of the answers.
        latency_ms: onnxruntime on one thread, one question about the largest table, median.
        latency_batch_ms: the same for the largest batch.
    """

    cases: int
    batches: tuple[int, ...]
    entities: tuple[int, ...]
    tolerance: float
    max_difference: float
    latency_ms: float
    latency_batch_ms: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"batches": list(self.batches), "entities": list(self.entities)}

    def for_manifest(self) -> dict[str, Any]:
        """Without timings, so that equal models make equal bundles."""
        return {name: value for name, value in self.as_dict().items() if not name.startswith("latency")}

    def words(self) -> str:
        """For people."""
        return (
            f"{self.cases} cases (tables of {', '.join(map(str, self.entities))} entities, batches of "
            f"{', '.join(map(str, self.batches))}), largest difference of a score {self.max_difference:.1e}\n"
            f"{self.latency_ms:.2f} ms a question about {self.entities[-1]} entities on one thread here"
        )


def shape_of(module: nn.Module) -> Completion:
    """The shape of an inference module.

    Raises:
        Misconfigured: it completes no knowledge graphs.
    """
    shape = getattr(module, "shape", None)
    if not isinstance(shape, Completion):
        raise Misconfigured(
            "the method's inference module does not say its shape: it completes no knowledge graphs"
        )
    return shape


def to_onnx(module: nn.Module) -> bytes:
    """Export an inference module; the same module gives the same bytes.

    Args:
        module: ``forward(head_B, relation_B, e_EVD, r_X)`` gives ``tails_BK`` and ``scores_BK``.
    """
    shape, dim = shape_of(module), torch.export.Dim
    about_B = torch.zeros(EXAMPLE_BATCH, dtype=torch.int64)
    e_EVD = torch.zeros(2 * EXAMPLE_BATCH, shape.views, shape.entity_dim)
    r_X = torch.zeros(_RELATIONS, shape.views * shape.relation_dim)
    return serialized(
        module,
        (about_B, about_B.clone(), e_EVD, r_X),
        names=COMPLETION_INPUTS,
        outputs=COMPLETION_OUTPUTS,
        dynamic=({0: dim("batch")}, {0: dim.AUTO}, {0: dim("entities")}, {0: dim("relations")}),
    )


def _tables(shape: Completion) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Descriptions and ``e_EVD``; the largest table is last."""
    rng, k = np.random.default_rng(_SEED), shape.top_k
    spread = _LENGTH / np.sqrt(shape.entity_dim)

    def drawn(count: int) -> NDArray[np.float32]:
        size = (count, shape.views, shape.entity_dim)
        return np.asarray(spread * rng.standard_normal(size), np.float32)

    for count in sorted({1, max(1, k - 1), k, k + 1}):
        yield f"{count} entities", drawn(count)
    yield f"{k + MANY} entities, all equal", np.repeat(drawn(1), k + MANY, axis=0)
    yield (
        f"{k + MANY} entities, each twice",
        np.repeat(drawn((k + MANY + 1) // 2), 2, axis=0)[: k + MANY],
    )
    yield f"{k + MANY} entities", drawn(k + MANY)


def _asked(shape: Completion, e_EVD: NDArray[np.float32], batch: int) -> Feeds:
    """Questions about a table, and relation embeddings as small as trained ones."""
    rng = np.random.default_rng((_SEED, len(e_EVD), batch))
    size = (_RELATIONS, shape.views * shape.relation_dim)
    feeds = (
        rng.integers(len(e_EVD), size=batch),
        rng.integers(_RELATIONS, size=batch),
        e_EVD,
        rng.uniform(-1, 1, size).astype(np.float32),
    )
    return dict(zip(COMPLETION_INPUTS, feeds, strict=True))


def _run(loaded: ort.InferenceSession, feeds: Feeds, where: str) -> list[NDArray[Any]]:
    try:
        outputs: list[NDArray[Any]] = loaded.run(list(COMPLETION_OUTPUTS), feeds)
    except (_ort.InvalidArgument, _ort.Fail, _ort.RuntimeException) as error:
        raise Refused(
            Reason.WRONG_TENSORS, f"the exported ONNX model does not run at {where}: {error}"
        ) from None
    return outputs


def _gap(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    return float((np.abs(got - want) / (1 + np.abs(want))).max(initial=0.0))


def _compare(loaded: ort.InferenceSession, reference: Completing, feeds: Feeds, where: str) -> float:
    """The largest difference of one case, whatever the order of equal scores."""
    tail_BK, score_BK = _run(loaded, feeds, where)
    arguments = tuple(torch.from_numpy(feeds[name]) for name in COMPLETION_INPUTS)
    with torch.no_grad():
        s_BE = reference.scores(*arguments).numpy()
        wanted_BK = reference(*arguments)[1].numpy()
    batch, entities = s_BE.shape
    size, answered = (batch, reference.shape.top_k), min(reference.shape.top_k, entities)
    if tail_BK.shape != size or score_BK.shape != size or tail_BK.dtype != np.int64:
        raise Refused(
            Reason.WRONG_TENSORS,
            f"at {where} tails are {tail_BK.dtype} {tail_BK.shape}, scores {score_BK.shape}, not {size}",
        )
    answer_BK, none_BK = tail_BK[:, :answered], tail_BK[:, answered:]
    in_range = bool(((answer_BK >= 0) & (answer_BK < entities)).all() and (none_BK == -1).all())
    if not in_range or any(len(set(row)) < answered for row in answer_BK.tolist()):
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"at {where} tails are not {answered} different ones of {entities} entities, and -1 behind them",
        )
    own_BK = np.take_along_axis(s_BE, answer_BK, axis=1)
    off = np.maximum(_gap(score_BK, wanted_BK), _gap(score_BK[:, :answered], own_BK))
    if not off <= LOGIT_TOLERANCE:  # written so that NaN refuses too
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"ONNX model and torch differ at {where}: scores by {off:.2e} (at most {LOGIT_TOLERANCE:.0e})",
        )
    return float(off)


def check(model: bytes, reference: Any) -> CompletionParity:
    """Compare an exported model with its torch module.

    Args:
        model: a serialized ONNX model.
        reference: the exported module (:class:`Completing`), in evaluation mode.

    Raises:
        Refused: they differ, or an answer is invalid; the detail names table and batch size.
    """
    loaded, shape = session(model), shape_of(reference)
    tables = list(_tables(shape))
    gaps = [
        _compare(loaded, reference, _asked(shape, e_EVD, batch), f"batch {batch}, {words}")
        for words, e_EVD in tables
        for batch in BATCHES
    ]
    single, many = (_median_ms(loaded, _asked(shape, tables[-1][1], b)) for b in (1, BATCHES[-1]))
    return CompletionParity(
        cases=len(gaps),
        batches=BATCHES,
        entities=tuple(sorted({len(e_EVD) for _, e_EVD in tables})),
        tolerance=LOGIT_TOLERANCE,
        max_difference=max(gaps),
        latency_ms=single,
        latency_batch_ms=many,
    )


def _median_ms(loaded: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]]) -> float:
    times = []
    for _ in range(_TIMED_RUNS):
        start = time.perf_counter()
        loaded.run(list(COMPLETION_OUTPUTS), dict(feeds))
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 3)
