"""The gate: an exported graph is packed only if it computes what the torch module computes.

Compared at several batch sizes and for every set of present modalities, because that is where exporters
freeze what should be free. The time axis is fixed by the task and not tried.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as _ort
from torch import nn

from export.graph import OUTPUTS, PRESENT
from export.own import Paths, examples, replaced, values_of
from models.contract import Tensors
from protocol.errors import Reason, Refused
from protocol.task import Task

BATCHES: Final = (1, 2, 7, 32)
TOLERANCE: Final = 1e-4
"""Largest difference of a probability. The winner cannot change where its lead is over twice this."""
LOGIT_TOLERANCE: Final = 1e-3
"""Of ``1 + |logit|``: sees what saturated probabilities hide."""
MAX_MASKS: Final = 64
"""All masks up to six modalities; beyond: none, all, each one alone, each one missing, and some others."""
_SEED: Final = 20_260
_TIMED_RUNS: Final = 30

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Parity:
    """What the gate saw.

    Attributes:
        cases: triples of batch size, mask and a device's own tensors, each compared in every class of every
            window.
        replaced: sets of a device's own tensors that were tried; 0 where it cannot have any.
        max_difference: of a probability.
        max_logit_difference: relative to ``1 + |logit|``.
        latency_ms: onnxruntime on one thread, a single window with everything present, median.
        latency_batch_ms: the same for the largest batch.
    """

    cases: int
    batches: tuple[int, ...]
    masks: int
    replaced: int
    tolerance: float
    max_difference: float
    max_logit_difference: float
    latency_ms: float
    latency_batch_ms: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"batches": list(self.batches)}

    def for_manifest(self) -> dict[str, Any]:
        """Without timings: the same model makes the same bundle."""
        return {name: value for name, value in self.as_dict().items() if not name.startswith("latency")}


def masks_of(modalities: int) -> list[tuple[bool, ...]]:
    """The sets of present modalities to try: all 2^M of them, or :data:`MAX_MASKS` where there are more."""
    if 2**modalities <= MAX_MASKS:
        return list(product((False, True), repeat=modalities))
    one = np.eye(modalities, dtype=bool)
    named = [np.zeros(modalities, bool), np.ones(modalities, bool), *one, *~one]
    rng = np.random.default_rng(_SEED)
    some = rng.random((MAX_MASKS, modalities)) > 0.5  # noqa: PLR2004 - a fair coin
    unique = dict.fromkeys(tuple(bool(b) for b in row) for row in [*named, *some])
    return list(unique)[:MAX_MASKS]


def session(model: bytes) -> ort.InferenceSession:
    """The model as a device loads it: CPU, one thread.

    Raises:
        Refused: onnxruntime cannot load it.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (_ort.Fail, _ort.InvalidGraph, _ort.InvalidProtobuf, _ort.NotImplemented) as error:
        raise Refused(Reason.MALFORMED, f"onnxruntime cannot load the exported graph: {error}") from None


def _inputs(task: Task, batch: int, rng: np.random.Generator) -> dict[str, Array]:
    """Windows in raw units, spread as the task says that the sensors are."""
    return {
        m.name: (m.offset + m.scale * rng.standard_normal((batch, m.channels, task.samples(m.name)))).astype(
            np.float32
        )
        for m in task.modalities
    }


def _cases(task: Task) -> Iterator[tuple[int, str, Array, dict[str, Array]]]:
    """Batch size, mask in words, ``present_BM``, windows; NaN wherever a modality is missing."""
    rng = np.random.default_rng(_SEED)
    masks = np.array(masks_of(len(task.modalities)), dtype=np.float32)
    for batch in BATCHES:
        x = _inputs(task, batch, rng)
        mixed = masks[np.arange(batch) % len(masks)]
        for words, present_BM in [
            *((_words(task, mask), np.tile(mask, (batch, 1))) for mask in masks),
            ("a different mask in each window", mixed),
        ]:
            holes = {
                name: np.where(present_BM[:, m, None, None] > 0, x[name], np.float32(np.nan))
                for m, name in enumerate(task.modality_names)
            }
            yield batch, words, present_BM, holes


def _words(task: Task, mask: Array) -> str:
    there = [name for name, here in zip(task.modality_names, mask, strict=True) if here]
    return f"present: {', '.join(there) or 'nothing'}"


def _median_ms(loaded: ort.InferenceSession, feed: dict[str, Array]) -> float:
    times = []
    for _ in range(_TIMED_RUNS):
        start = time.perf_counter()
        loaded.run(list(OUTPUTS), feed)
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 3)


def _run(loaded: ort.InferenceSession, feed: dict[str, Array], where: str) -> tuple[Array, Array]:
    """``probabilities_BK`` and ``logits_BK`` of the graph."""
    try:
        p_BK, logits_BK = loaded.run(list(OUTPUTS), feed)
    except (_ort.InvalidArgument, _ort.Fail, _ort.RuntimeException) as error:
        raise Refused(Reason.WRONG_TENSORS, f"the exported graph does not run at {where}: {error}") from None
    if not (np.isfinite(p_BK).all() and np.isfinite(logits_BK).all()):
        raise Refused(Reason.NON_FINITE, f"at {where} the graph's output is not finite")
    return p_BK, logits_BK


def _gaps(got: tuple[Array, Array], want: tuple[Array, Array], where: str) -> tuple[float, float]:
    """Largest difference of a probability, and of a score relative to ``1 + |score|``."""
    for name, mine, theirs in zip(OUTPUTS, got, want, strict=True):
        if mine.shape != theirs.shape:
            raise Refused(Reason.WRONG_TENSORS, f"at {where} {name} is {mine.shape}, in torch {theirs.shape}")
    gap = float(np.abs(got[0] - want[0]).max())
    gap_logit = float((np.abs(got[1] - want[1]) / (1 + np.abs(want[1]))).max())
    # Written so that NaN on torch's side refuses too.
    if not (gap <= TOLERANCE and gap_logit <= LOGIT_TOLERANCE):
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"graph and torch differ at {where}: probabilities by {gap:.2e} (at most {TOLERANCE:.0e}), "
            f"scores by {gap_logit:.2e} (at most {LOGIT_TOLERANCE:.0e})",
        )
    return gap, gap_logit


def _compare(
    loaded: ort.InferenceSession, reference: nn.Module, task: Task, paths: Paths, own: Tensors
) -> list[tuple[float, float]]:
    """The gaps of all cases, with these tensors of a device's own in both."""
    gaps, words_own = [], f", own {', '.join(own)}" if own else ""
    for batch, words, present_BM, x in _cases(task):
        where = f"batch {batch}, {words}{words_own}"
        arguments = tuple(
            torch.from_numpy(value) for value in (present_BM, *(x[n] for n in task.modality_names))
        )
        with torch.no_grad():
            want = replaced(reference, paths, own, arguments)
        got = _run(loaded, {PRESENT: present_BM, **x, **own}, where)
        gaps.append(_gaps(got, (want[0].numpy(), want[1].numpy()), where))
    return gaps


def _require_own(loaded: ort.InferenceSession, own: Paths) -> None:
    found = sorted(i.name for i in loaded.get_overridable_initializers())
    if found != sorted(own):
        can, should = (", ".join(names) or "nothing" for names in (found, sorted(own)))
        raise Refused(Reason.WRONG_TENSORS, f"a device can replace {can} in the graph, not {should}")


def check(model: bytes, reference: nn.Module, task: Task, own: Paths | None = None) -> Parity:
    """Compare an exported model with its torch module.

    Args:
        model: a serialized ONNX model.
        reference: what was exported, in evaluation mode.
        task: names inputs, shapes and units.
        own: the tensors that a device may replace, as given to ``to_onnx``: tried with other values too.

    Raises:
        Refused: they differ, or an output is not finite or has another shape; the detail names batch size,
            mask, replaced tensors and difference.
    """
    loaded, paths = session(model), own or {}
    _require_own(loaded, paths)
    sets = examples(values_of(reference, paths)) if paths else []
    gaps = [gap for one in ({}, *sets) for gap in _compare(loaded, reference, task, paths, one)]
    rng = np.random.default_rng(_SEED)
    single, many = (
        _median_ms(loaded, {PRESENT: np.ones((b, len(task.modalities)), np.float32), **_inputs(task, b, rng)})
        for b in (1, BATCHES[-1])
    )
    return Parity(
        cases=len(gaps),
        batches=BATCHES,
        masks=len(masks_of(len(task.modalities))),
        replaced=len(sets),
        tolerance=TOLERANCE,
        max_difference=max(gap for gap, _ in gaps),
        max_logit_difference=max(gap for _, gap in gaps),
        latency_ms=single,
        latency_batch_ms=many,
    )
