"""The gate: an exported ONNX model is packed only if it agrees with the torch module.

All outputs are compared for several batch sizes, all masks of modalities, and several window lengths if the
network takes any, because exporters may fix these axes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as _ort
from torch import nn

from export.overridable_inputs import Paths, examples, replaced, values_of
from export.parity.cases import BATCHES, Array, cases, everything, lengths_of, masks_of
from export.parity.tolerances import TOLERANCE, Gaps, gaps, largest, measures, worst
from export.signature import Surface, surface_of
from models.contract import Tensors
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task
from runtime.text import first_few

LOADING: Final = (
    _ort.Fail,
    _ort.InvalidArgument,
    _ort.InvalidGraph,
    _ort.InvalidProtobuf,
    _ort.NotImplemented,
)
"""Exceptions of onnxruntime for unsupported models."""
_TIMED_RUNS: Final = 30


@dataclass(frozen=True)
class Parity:
    """Measurements of the gate.

    Attributes:
        cases: combinations of batch size, mask, time length and a device's own tensors, compared in all
            elements of all outputs.
        samples: time lengths by modality, the task's first; the only one where the time axis is fixed.
        replaced: tested sets of a device's own tensors; 0 if it cannot have any.
        max_difference: of a probability.
        max_logit_difference: of a score, relative to ``1 + |logit|``, or of a value or window, in the measure
            of ``export.parity.tolerances``.
        latency_ms: onnxruntime on one thread, a single window with everything present, median.
        latency_batch_ms: the same for the largest batch.
        by_output: maximum by output; empty if ``label`` is the only target.
        int8: description of the int8 variant, or why there is none (``export.int8.variants``); empty if not
            requested.
        latency_int8_ms: the variant's ``latency_ms``; 0 without one.
        latency_batch_int8_ms: its ``latency_batch_ms``.
    """

    cases: int
    batches: tuple[int, ...]
    masks: int
    samples: Mapping[str, tuple[int, ...]]
    replaced: int
    tolerance: float
    max_difference: float
    max_logit_difference: float
    latency_ms: float
    latency_batch_ms: float
    by_output: Mapping[str, float] = field(default_factory=dict)
    int8: str = ""
    latency_int8_ms: float = 0.0
    latency_batch_int8_ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        samples = {name: list(tried) for name, tried in self.samples.items()}
        values = asdict(self) | {"batches": list(self.batches), "samples": samples}
        may_be_empty = ("by_output", "int8", "latency_int8_ms", "latency_batch_int8_ms")
        return {name: value for name, value in values.items() if value or name not in may_be_empty}

    def for_manifest(self) -> dict[str, Any]:
        """Without timings, so that equal models make equal bundles."""
        return {name: value for name, value in self.as_dict().items() if not name.startswith("latency")}

    def words(self) -> str:
        """For people."""
        most = max(self.samples.values(), key=len)
        lengths = f"windows of {', '.join(map(str, most))} samples"
        if len(most) == 1:
            lengths = f"windows of {most[0]} samples alone: the network's time axis is fixed"
        return (
            f"{self.cases} cases ({self.masks} masks, batches of {', '.join(map(str, self.batches))}, "
            f"{lengths}), largest difference of a probability {self.max_difference:.1e}, of a score or value "
            f"{self.max_logit_difference:.1e}\n{self.latency_ms:.2f} ms a window on one thread here"
        ) + self._int8_words()

    def _int8_words(self) -> str:
        times = f"; {self.latency_int8_ms:.2f} ms a window" if self.latency_int8_ms else ""
        return f"\nint8: {self.int8}{times}" if self.int8 else ""


def session(model: bytes) -> ort.InferenceSession:
    """Load the model as a device does: CPU, one thread.

    Raises:
        Refused: onnxruntime cannot load it.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except LOADING as error:
        raise Refused(Reason.MALFORMED, f"onnxruntime cannot load the exported ONNX model: {error}") from None


def _median_ms(loaded: ort.InferenceSession, names: Sequence[str], feed: Mapping[str, Array]) -> float:
    times = []
    for _ in range(_TIMED_RUNS):
        start = time.perf_counter()
        loaded.run(list(names), dict(feed))
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 3)


def timed(loaded: ort.InferenceSession, surface: Surface) -> tuple[float, float]:
    """Median milliseconds of one window and of the largest batch, with all modalities."""
    single, many = (_median_ms(loaded, surface.outputs, feed) for feed in everything(surface))
    return single, many


def run(
    loaded: ort.InferenceSession, names: Sequence[str], feed: Mapping[str, Array], where: str
) -> list[Array]:
    """The ONNX model's outputs of these names.

    Raises:
        Refused: it does not run, or an output is not finite; the detail says ``where``.
    """
    try:
        outputs: list[Array] = loaded.run(list(names), dict(feed))
    except (_ort.InvalidArgument, _ort.Fail, _ort.RuntimeException) as error:
        raise Refused(
            Reason.WRONG_TENSORS, f"the exported ONNX model does not run at {where}: {error}"
        ) from None
    if not all(np.isfinite(values).all() for values in outputs):
        raise Refused(Reason.NON_FINITE, f"at {where} the ONNX model's output is not finite")
    return outputs


def _compare(
    loaded: ort.InferenceSession, reference: nn.Module, surface: Surface, paths: Paths, own: Tensors
) -> list[Gaps]:
    """The gaps of all cases, with these own tensors of a device in both."""
    differences, measured = [], measures(surface)
    for words, inputs in cases(surface):
        where = words + (f", own {first_few(own)}" if own else "")
        arguments = tuple(torch.from_numpy(inputs[name]) for name in surface.inputs)
        with torch.no_grad():
            want = replaced(reference, paths, own, arguments)
        got = run(loaded, surface.outputs, {**inputs, **own}, where)
        differences.append(gaps(measured, got, [values.numpy() for values in want], where))
    return differences


def require_own(loaded: ort.InferenceSession, own: Paths) -> None:
    """Raises Refused if a device could replace other tensors than these."""
    replaceable = sorted(i.name for i in loaded.get_overridable_initializers())
    if replaceable != sorted(own):
        can, should = (", ".join(names) or "nothing" for names in (replaceable, sorted(own)))
        raise Refused(Reason.WRONG_TENSORS, f"a device can replace {can} in the ONNX model, not {should}")


def check(model: bytes, reference: nn.Module, task: Task, own: Paths | None = None) -> Parity:
    """Compare an exported model with its torch module.

    Args:
        model: a serialized ONNX model.
        reference: the exported module, in evaluation mode.
        task: names inputs, shapes and units; the module selects among them (``export.signature``).
        own: the tensors that a device may replace, as in ``to_onnx``; tested with other values too.

    Raises:
        Refused: they differ in an output, or one is not finite or has another shape; the detail names batch
            size, mask, length, replaced tensors and differences.
    """
    loaded, paths, surface = session(model), own or {}, surface_of(reference, task)
    require_own(loaded, paths)
    sets = examples(values_of(reference, paths)) if paths else []
    differences = [
        gap for tensors in ({}, *sets) for gap in _compare(loaded, reference, surface, paths, tensors)
    ]
    measured = measures(surface)
    by_output = largest(measured, differences)
    single, many = timed(loaded, surface)
    tried = lengths_of(surface)
    return Parity(
        cases=len(differences),
        batches=BATCHES,
        masks=len(masks_of(len(surface.modalities))),
        samples={name: tuple(dict.fromkeys(length[name] for length in tried)) for name in surface.names},
        replaced=len(sets),
        tolerance=TOLERANCE,
        max_difference=worst(measured, by_output, absolute=True),
        max_logit_difference=worst(measured, by_output, absolute=False),
        latency_ms=single,
        latency_batch_ms=many,
        by_output={} if surface.only_label else by_output,
    )
