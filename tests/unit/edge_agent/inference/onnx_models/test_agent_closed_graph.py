"""Models from the wire that are more than arithmetic are refused before ONNX Runtime sees them."""

import contextlib
import errno
import os
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_agent.inference.onnx_models import session
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.encoder_model import INPUT, OUTPUT, EncoderModel
from edge_agent.inference.onnx_models.session import open_session
from edge_agent.inference.onnx_models.window_model import LoadedModel, read_manifest
from models.backbones import graph_safety
from models.backbones.graph_safety import require_safe_model
from protocol.bundle import Variant, unpack
from protocol.errors import Reason, Refused
from tests.support.agent.bundle import bundle, ref_of, tiny_onnx
from tests.support.agent.serving import TASK, judged, probabilities, put
from tests.support.fuzz.models import DEVICE_KEY, as_ort, hiding
from tests.support.fuzz.protobuf_forms import FIFTH, Item, each, parse, write
from tests.support.methods.closed_models import by_cpp

C, T, D = 2, 4, 3
W = "encoder/m/w"


def info(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def model(*, nodes=(), constants=()):
    """An encoder model, and what else is put into it."""
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
    graph = EncoderModel(model().SerializeToString())
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
        EncoderModel(made.SerializeToString())
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
    require_safe_model(quantized(), "it")
    with pytest.raises(Refused, match=r"an operator of 'com\.microsoft'"):
        require_safe_model(quantized("com.microsoft"), "it")


def test_a_place_outside_is_found_without_its_flag_and_a_flag_without_its_place() -> None:
    place, flag = outside(), outside()
    place.ClearField("data_location")
    del flag.external_data[:]
    for tensor in (place, flag):
        with pytest.raises(Refused, match="outside of it"):
            require_safe_model(model(constants=[tensor]).SerializeToString(), "it")


def test_two_graphs_in_one_model_are_one_to_protobuf_and_refused() -> None:
    data = model().SerializeToString()
    with pytest.raises(Refused, match="field 7 of a model twice"):
        require_safe_model(data + data[data.index(b"\x3a") :], "it")


@pytest.mark.parametrize("fifth", FIFTH)
def test_a_tag_whose_upper_bits_cpp_drops_hides_nothing(fifth: int, tmp_path: Path, monkeypatch) -> None:
    """ONNX Runtime reads a file below the working directory for a graph that is handed to it as bytes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "identity").mkdir()
    (tmp_path / DEVICE_KEY).write_bytes(np.arange(D * D, dtype=np.float32).tobytes())
    hidden = hiding(model().SerializeToString(), fifth=fifth)
    assert [t.name for t in by_cpp(hidden).graph.initializer] == ["axes", "secret"]
    with pytest.raises(Refused, match="no ONNX model: byte"):
        EncoderModel(hidden)
    with pytest.raises(Refused, match="no ONNX model: byte"):
        opened(tmp_path / "bundle", hidden)


def test_what_is_not_known_is_refused_at_every_level() -> None:
    made = model(
        nodes=[helper.make_node("Constant", [], ["c"], value=helper.make_tensor("v", 1, [1], [1.0]))]
    )
    items = parse(made.SerializeToString())
    within = [items, *(item.inner for item in each(items) if item.inner is not None)]
    assert len(within) > 20
    for message in within:
        message.append(Item(5000, 0, b"\x01"))
        with pytest.raises(Refused, match="field 5000 in a"):
            require_safe_model(write(items), "it")
        message.pop()
    require_safe_model(write(items), "it")


def test_what_onnx_runtime_takes_for_its_own_format_is_refused(tmp_path: Path) -> None:
    data = as_ort(model().SerializeToString())
    assert data[4:8] == b"ORTM"
    assert onnx.load_from_string(data).graph == model().graph
    for take in (EncoderModel, partial(opened, tmp_path)):
        with pytest.raises(Refused, match="the form of ONNX Runtime's own files"):
            take(data)


def opened(folder: Path, data: bytes) -> LoadedModel:
    return LoadedModel(put(folder, bundle(TASK, content=data)), 1)


def test_the_bytes_that_are_run_are_those_that_were_looked_through(tmp_path: Path, monkeypatch) -> None:
    """Whoever changes the file after the look, changes nothing."""
    folder = put(tmp_path)
    other = tiny_onnx(TASK, bias=5.0)

    def looked(data: bytes, what: str) -> None:
        require_safe_model(data, what)
        (folder / "model.onnx").write_bytes(other)

    monkeypatch.setattr(session, "require_safe_model", looked)
    batch = judged()
    said = LoadedModel(folder, 1).predict(batch.windows.x, batch.windows.present_BM, TASK.modality_names)
    assert np.allclose(said["label"], probabilities(batch), atol=1e-5)
    assert (folder / "model.onnx").read_bytes() == other


def test_the_sealed_bytes_are_mapped_as_every_kernel_allows(tmp_path: Path, monkeypatch) -> None:
    """Linux before 6.7 refuses to share a page of what is sealed against writing, also for reading alone."""
    ways: set[str] = set()

    def looked(data: bytes, what: str) -> None:
        require_safe_model(data, what)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        ways.update(line.split()[1] for line in maps if "memfd:model" in line)

    monkeypatch.setattr(session, "require_safe_model", looked)
    LoadedModel(put(tmp_path), 1)
    assert ways == {"r--p"}


def test_a_kernel_that_refuses_executable_memory_or_knows_no_such_flag_opens_models(
    tmp_path: Path, monkeypatch
) -> None:
    create, asked = os.memfd_create, []

    def old(name: str, flags: int) -> int:
        asked.append(bool(flags & 0x8))
        if asked[-1]:
            raise OSError(errno.EINVAL, "an old kernel")
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    LoadedModel(put(tmp_path), 1)
    assert asked == [True, False]


def test_a_file_that_changed_since_its_manifest_was_read_is_not_opened(tmp_path: Path) -> None:
    folder = put(tmp_path)
    manifest = read_manifest(folder)
    (folder / "model.onnx").write_bytes(tiny_onnx(TASK, bias=5.0))
    with pytest.raises(Refused, match="not what its manifest says") as refused:
        open_session(folder, manifest, 1)
    assert refused.value.reason is Reason.WRONG_DIGEST
    with pytest.raises(Refused, match=r"model\.ort is not in its manifest"):
        open_session(folder, manifest, 1, "model.ort")


def test_a_variant_of_another_name_than_export_gives_is_refused() -> None:
    for file, words in (("model.int8.ort", "is no .onnx file"), ("model.int8.onnx", "")):
        variants = {"int8": Variant(file=file, precision="int8")}
        files = {name: ref_of(b"") for name in ("model.onnx", file)}
        manifest, _ = unpack(bundle(TASK))
        said = manifest.model_copy(update={"variants": variants, "files": files})
        with pytest.raises(Refused, match=words) if words else contextlib.nullcontext():
            require_compatible(said, TASK, TASK.modality_names)


def test_bytes_that_are_no_model_are_refused_and_never_an_error() -> None:
    data = model().SerializeToString()
    rng = np.random.default_rng(0)
    for cut in range(1, len(data), 7):
        for bad in (data[:cut], data[:cut] + rng.bytes(40), rng.bytes(cut)):
            with contextlib.suppress(Refused):  # anything else fails
                require_safe_model(bad, "it")


def test_a_model_of_too_many_parts_is_not_looked_through_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(graph_safety, "MAX_FIELDS", 20)
    with pytest.raises(Refused, match="more than 20 parts") as refused:
        require_safe_model(model().SerializeToString(), "it")
    assert refused.value.reason is Reason.TOO_LARGE
