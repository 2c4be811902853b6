"""Models from the wire that are more than arithmetic are refused before ONNX Runtime sees them."""

import contextlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent import closed_graph
from edge_agent.closed_graph import require_closed
from edge_agent.features import INPUT, OUTPUT, FeatureGraph
from protocol.errors import Reason, Refused

C, T, D = 2, 4, 3
W = "encoder/m/w"


def info(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def model(*, nodes=(), constants=()):
    """A feature graph, and what else is put into it."""
    axes = numpy_helper.from_array(np.array([2]), "axes")
    given = [
        helper.make_node("ReduceMean", [INPUT, "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", W], [OUTPUT]),
    ]
    graph = helper.make_graph(
        [*given, *nodes],
        "g",
        [info(INPUT, "batch", C, T), info(W, C, D)],
        [info(OUTPUT, "batch", D)],
        [axes, *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def outside(name="secret", location="identity/key.pem"):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def loop():
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    return helper.make_node("Loop", ["", "for_ever"], [], body=body)


def with_function():
    made = model()
    node = helper.make_node("Relu", ["a"], ["b"])
    made.functions.append(
        helper.make_function("lib", "f", ["a"], ["b"], [node], [helper.make_opsetid("", 20)])
    )
    return made


def sparse():
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    index = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    made = model()
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, index, [10**12]))
    return made


def test_a_feature_graph_is_closed_and_runs() -> None:
    graph = FeatureGraph(model().SerializeToString())
    assert graph.dim == D
    graph.try_once()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (model(constants=[outside()]), "constants in files outside of it"),
        (model(constants=[outside(location="/etc/passwd")]), "constants in files outside of it"),
        (
            model(nodes=[helper.make_node("Constant", [], ["c"], value=outside())]),
            "constants in files outside of it",
        ),
        (model(nodes=[loop()]), "a graph inside an operator"),
        (model(nodes=[helper.make_node("Run", ["mean"], ["o"], domain="shell")]), "an operator of 'shell'"),
        (with_function(), "functions of its own"),
        (sparse(), "sparse constants"),
    ],
)
def test_what_export_never_writes_is_refused(made: onnx.ModelProto, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        FeatureGraph(made.SerializeToString())
    assert refused.value.reason is Reason.MALFORMED


def quantized(domain=""):
    """Through int8 and back, as an int8 variant holds it; or by operators of ONNX Runtime's own."""
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    zero = numpy_helper.from_array(np.int8(3), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["mean", "scale", "zero"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["back"], domain=domain),
    ]
    return model(nodes=nodes, constants=[scale, zero]).SerializeToString()


def test_operators_of_an_int8_variant_are_taken_and_those_of_a_library_are_not() -> None:
    require_closed(quantized(), "it")
    with pytest.raises(Refused, match=r"an operator of 'com\.microsoft'"):
        require_closed(quantized("com.microsoft"), "it")


def test_a_place_outside_is_found_without_its_flag_and_a_flag_without_its_place() -> None:
    place, flag = outside(), outside()
    place.ClearField("data_location")
    del flag.external_data[:]
    for tensor in (place, flag):
        with pytest.raises(Refused, match="outside of it"):
            require_closed(model(constants=[tensor]).SerializeToString(), "it")


def test_two_graphs_in_one_model_are_one_to_protobuf_and_both_are_looked_into() -> None:
    data = model().SerializeToString() + model(nodes=[loop()]).SerializeToString()
    with pytest.raises(Refused, match="a graph inside an operator"):
        require_closed(data, "it")


def test_bytes_that_are_no_model_are_refused_and_never_an_error() -> None:
    data = model().SerializeToString()
    rng = np.random.default_rng(0)
    for cut in range(1, len(data), 7):
        for bad in (data[:cut], data[:cut] + rng.bytes(40), rng.bytes(cut)):
            with contextlib.suppress(Refused):  # anything else fails
                require_closed(bad, "it")


def test_a_model_of_too_many_parts_is_not_looked_through_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(closed_graph, "MAX_FIELDS", 20)
    with pytest.raises(Refused, match="more than 20 parts") as refused:
        require_closed(model().SerializeToString(), "it")
    assert refused.value.reason is Reason.TOO_LARGE
