"""Whether a model that ``closed_graph`` accepts means the same to onnx's own parsers.

There are two, and they disagree on some encodings: protobuf's in Python, and the one in C++ that ONNX Runtime
has, too. ``inliner`` reads and writes in C++, and changes nothing if there are no functions.
"""

from typing import Any

import onnx
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx.onnx_cpp2py_export import inliner

from models.backbones.graph_safety import require_safe_model

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def by_cpp(data: bytes) -> onnx.ModelProto:
    """The model as C++ reads it; RuntimeError or ValueError if it cannot."""
    return onnx.load_from_string(inliner.inline_local_functions(data, False))


def agreed(data: bytes) -> onnx.ModelProto:
    """The model that all parsers accept; raises Refused if ``closed_graph`` does not accept it.

    Raises:
        AssertionError: it accepts a model that onnx does not accept, or one that is not closed.
    """
    require_safe_model(data, "it")
    try:
        model = onnx.load_from_string(data)
    except DecodeError as error:
        raise AssertionError(f"taken, and no message to protobuf: {error}") from None
    require_known(model)
    assert model.ByteSize() == len(data), "protobuf would write it in another form"
    assert _written(by_cpp(data)) == _written(model), "in C++ it says something else"
    graph = model.graph
    more = (model.functions, model.training_info, graph.sparse_initializer, graph.quantization_annotation)
    assert not any(len(part) for part in more), "more than a graph"
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx"}, "operators of a library"
    tensors = [*graph.initializer]
    for node in graph.node:
        assert node.domain in {"", "ai.onnx"}, f"an operator of {node.domain}"
        for attribute in node.attribute:
            assert attribute.type not in _GRAPHS, "a graph inside an operator"
            inside = (attribute.graphs, attribute.sparse_tensors, attribute.tensors)
            assert not any(len(part) for part in inside), "more than numbers in an operator"
            for name in ("g", "sparse_tensor"):
                assert not attribute.HasField(name), "a graph inside an operator"
            tensors.append(attribute.t)
    for tensor in tensors:
        assert not tensor.external_data, "a file of the device"
        assert tensor.data_location == onnx.TensorProto.DEFAULT, "a file of the device"
    return model


def _written(model: onnx.ModelProto) -> bytes:
    """Its bytes; models with a NaN are not equal to themselves."""
    return bytes(model.SerializeToString(deterministic=True))


def require_known(message: Any) -> None:
    """Raises AssertionError if protobuf skips a field of a message, or of one within."""
    assert not len(UnknownFieldSet(message)), f"protobuf passes over a field of {message.DESCRIPTOR.name}"
    for known, value in message.ListFields():
        if known.message_type is not None:
            for inner in value if known.is_repeated else [value]:
                require_known(inner)
