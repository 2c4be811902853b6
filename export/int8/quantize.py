"""The same ONNX model with most of its arithmetic in int8: static quantization by ONNX Runtime's own tool.

Convolutions, and matrix products with a large constant, get weights of 7 bits (symmetric, one scale a
channel) and inputs of 8, whose ranges come from real windows. Written as QuantizeLinear and DequantizeLinear
around the float operators, all of them ONNX's own: any ONNX Runtime runs the ONNX model, and fuses what its
machine is fast at. LSTMs and what is small stay in float32, and so do tensors that a device may replace
(``export.overridable_inputs``).
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
"""A matrix of fewer numbers stays in float32: scales and rounding would cost more than it weighs."""
_PRODUCTS: Final = frozenset({"Gemm", "MatMul"})
_BETWEEN: Final = frozenset({"MaxPool", "Relu"})
"""They pass 8-bit values on, from one convolution to the next."""
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
"""What the tool and onnx raise on ONNX models that they do not know what to do with."""

Feed = Mapping[str, NDArray[Any]]


class _Reader:
    """Hands out feeds one after the other: what quantize_static calls a calibration data reader."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next one; None at the end."""
        return next(self._feeds, None)


def nodes_of(model: ModelProto) -> tuple[list[str], list[str]]:
    """Names of the nodes to quantize that have weights, and of those between them.

    A weight that is also an input is a device's to replace, and stays as it is.
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
        # a stack of matrices: ONNX Runtime's kernel takes one scale for all of it, and this has one a channel
        return len(weight) == _MATRIX and int(np.prod(weight)) >= LEAST
    return bool(node.op_type == "Conv")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the tool tells people who call it by hand: to use another tool before."""
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    ort.set_default_logger_severity(_QUIET)
    try:
        with warnings.catch_warnings():
            # NumPy's, of ranges that are not finite: the tool refuses them in the end.
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        ort.set_default_logger_severity(_USUAL)
        logger.setLevel(before)


def quantized(model: bytes, feeds: Iterable[Feed]) -> bytes | None:
    """An ONNX model in int8; the same ONNX model and feeds give the same bytes.

    Args:
        model: a serialized model (``export.onnx_graph``).
        feeds: inputs of real windows: what they take the inner values to is what int8 spans.

    Returns:
        A serialized model, checked by onnx; None where nothing in it can be quantized.

    Raises:
        Refused: the tool cannot do it; the detail is its own.
    """
    proto = onnx.load_from_string(model)
    heavy, between = nodes_of(proto)
    if not heavy:
        return None
    try:
        found = _by_tool(proto, feeds, [*heavy, *between])
        strip(found)
        onnx.checker.check_model(found, full_check=True)
    except _TROUBLE as error:
        raise Refused(Reason.MALFORMED, f"it cannot be quantized: {error}"[:_WORDS]) from None
    data: bytes = found.SerializeToString(deterministic=True)
    return data


def _by_tool(proto: ModelProto, feeds: Iterable[Feed], nodes: list[str]) -> ModelProto:
    with tempfile.TemporaryDirectory(prefix="lichen-int8-") as folder, _quiet():
        made = Path(folder) / "model.onnx"
        quantize_static(
            proto,
            str(made),
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
        return onnx.load(made)
