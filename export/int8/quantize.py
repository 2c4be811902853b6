"""Static int8 quantization of an ONNX model by ONNX Runtime's tool.

Convolutions, and matrix products with a large constant, get weights of 7 bits (symmetric, one scale a
channel) and inputs of 8, whose ranges come from real windows. Written as QuantizeLinear and DequantizeLinear
around float operators of standard ONNX: any ONNX Runtime runs the model, and fuses what its processor
supports. LSTMs and small matrices stay in float32, and so do tensors that a device may replace
(``export.overridable_inputs``), and a spectrogram, whose small powers 8 bits would lose: its table is no
constant (``export.computed_constants``).
"""

import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from export.onnx_graph import strip
from export.parity.gate import LOADING
from protocol.errors import Reason, Refused

LEAST: Final = 1024
"""Smaller matrices stay in float32: scales and rounding would cost more than they save."""
_PRODUCTS: Final = frozenset({"Gemm", "MatMul"})
_BETWEEN: Final = frozenset({"MaxPool", "Relu"})
"""Operators that pass 8-bit values between convolutions."""
_TYPES: Final = ("Conv", "Gemm", "MatMul", "MaxPool", "Relu")
_MATRIX: Final = 2
_QUIET: Final = 3
_USUAL: Final = 2
_WORDS: Final = 300
_TROUBLE: Final = (
    *LOADING,
    AssertionError,  # of ranges that are not finite: its checks of scales are assertions
    KeyError,
    RuntimeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)
"""Exceptions of the tool and of onnx for unsupported models."""

Feed = Mapping[str, NDArray[Any]]


class _Reader:
    """An iterator of feeds: quantize_static's calibration data reader."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next feed; None at the end."""
        return next(self._feeds, None)


def nodes_of(model: ModelProto) -> tuple[list[str], list[str]]:
    """Names of the nodes to quantize: those with weights, and those between them.

    A weight that is also an input may be replaced by a device, and stays in float32.
    """
    replaceable = {value.name for value in model.graph.input}
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer if t.name not in replaceable}
    heavy = [node.name for node in model.graph.node if _is_heavy(node, shapes)]
    between = [node.name for node in model.graph.node if node.op_type in _BETWEEN]
    return heavy, between


def _is_heavy(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    weight = shapes.get(node.input[1]) if len(node.input) > 1 else None
    if weight is None:
        return False
    if node.op_type in _PRODUCTS:
        # a stack of matrices: ONNX Runtime's kernel takes one scale for all, not one per channel
        return len(weight) == _MATRIX and int(np.prod(weight)) >= LEAST
    return bool(node.op_type == "Conv")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the tool's advice to preprocess the model."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    ort.set_default_logger_severity(_QUIET)
    try:
        with warnings.catch_warnings():
            # NumPy warns of ranges that are not finite; the tool refuses them later.
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        ort.set_default_logger_severity(_USUAL)
        logger.setLevel(before)


def quantized(model: bytes, feeds: Iterable[Feed]) -> bytes | None:
    """An ONNX model in int8; equal models and feeds give equal bytes.

    Args:
        model: a serialized model (``export.onnx_graph``).
        feeds: inputs of real windows; their activations set the ranges of int8.

    Returns:
        A serialized model, checked by onnx; None if nothing can be quantized.

    Raises:
        Refused: the tool fails; the detail is its message.
    """
    proto = onnx.load_from_string(model)
    heavy, between = nodes_of(proto)
    if not heavy:
        return None
    try:
        quantized_model = _by_tool(proto, feeds, [*heavy, *between])
        strip(quantized_model)
        onnx.checker.check_model(quantized_model, full_check=True)
    except _TROUBLE as error:
        raise Refused(Reason.MALFORMED, f"it cannot be quantized: {error}"[:_WORDS]) from None
    data: bytes = quantized_model.SerializeToString(deterministic=True)
    return data


def _by_tool(proto: ModelProto, feeds: Iterable[Feed], nodes: list[str]) -> ModelProto:
    with tempfile.TemporaryDirectory(prefix="lichen-int8-") as folder, _quiet():
        output = Path(folder) / "model.onnx"
        quantize_static(
            proto,
            str(output),
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_TYPES),
            per_channel=True,
            reduce_range=True,  # weights of 7 bits: x86 without VNNI adds two products up in 16 bits
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=nodes,
            calibrate_method=CalibrationMethod.MinMax,
            # a product's output goes to float arithmetic: rounding it would cost accuracy and save nothing
            extra_options={"OpTypesToExcludeOutputQuantization": sorted(_PRODUCTS)},
        )
        return onnx.load(output)
