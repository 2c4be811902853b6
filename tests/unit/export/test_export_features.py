import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from edge_agent.inference.onnx_models.encoder_model import BATCH, EncoderModel
from export.encoder_models import check, make_encoder_models
from export.job import FeaturesJob, do
from models.multimodal.network import build, to_blobs
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality
from tests.support.tasks import sensors, small_network, small_task

TASK = small_task(
    (
        Modality(name="acc", channels=3, rate_hz=10, offset=9.8, scale=4.0),
        *sensors(gyro=(1, 20)),
        Modality(name="deep", channels=6, rate_hz=10, scale=0.5),
    ),
    network=small_network(
        acc=Encoder(kind="cnn1d", width=4, depth=3),
        gyro=Encoder(kind="lstm", width=5, depth=1),
        deep=Encoder(kind="lstm", width=4, depth=2),
    ),
)


@pytest.fixture(scope="module")
def graphs() -> dict[str, bytes]:
    return make_encoder_models(TASK)


def trained():
    """Trained for a few steps, so that every tensor, BatchNorm's statistics too, has moved."""
    torch.manual_seed(3)
    net = build(TASK)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        x = [m.offset + m.scale * torch.randn(8, m.channels, TASK.samples(m.name)) for m in TASK.modalities]
        loss = torch.nn.functional.cross_entropy(net(*x), torch.arange(8) % 3)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


@pytest.mark.parametrize("name", TASK.modality_names)
@pytest.mark.parametrize("batch", [1, 3, BATCH, BATCH + 1])
def test_an_agent_gets_the_features_that_torch_gets(graphs: dict[str, bytes], name: str, batch: int) -> None:
    net, graph = trained(), EncoderModel(graphs[name])
    m = TASK.modality(name)
    x = (
        np.random.default_rng(batch).normal(m.offset, m.scale, (batch, m.channels, TASK.samples(name)))
    ).astype(np.float32)
    with torch.no_grad():
        want = net.encode(name, torch.from_numpy(x)).numpy()
    got = graph.run(x, to_blobs(net)[f"encoder/{name}"])
    assert got.dtype == np.float32
    assert np.allclose(got, want, atol=1e-5)


def test_one_graph_serves_every_version(graphs: dict[str, bytes]) -> None:
    graph = EncoderModel(graphs["deep"])
    x = np.random.default_rng(0).standard_normal((2, 6, 20)).astype(np.float32)
    for seed in range(3):
        torch.manual_seed(seed)
        net = build(TASK).eval()
        with torch.no_grad():
            want = net.encode("deep", torch.from_numpy(x)).numpy()
        assert np.allclose(graph.run(x, to_blobs(net)["encoder/deep"]), want, atol=1e-5)


@pytest.mark.long
def test_the_same_task_gives_the_same_bytes_whatever_torch_s_generator(graphs: dict[str, bytes]) -> None:
    torch.manual_seed(77)
    before = torch.random.get_rng_state()
    assert make_encoder_models(TASK) == graphs
    assert torch.equal(torch.random.get_rng_state(), before)


def test_weights_are_inputs_and_travel_by_their_wire_names(graphs: dict[str, bytes]) -> None:
    blobs = to_blobs(build(TASK))
    for name, data in graphs.items():
        proto = onnx.load_from_string(data)
        shapes = {
            i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
            for i in proto.graph.input
        }
        m = TASK.modality(name)
        assert shapes.pop("x") == ["batch", m.channels, TASK.samples(name)]
        assert shapes == {n: list(t.shape) for n, t in blobs[f"encoder/{name}"].items()}
        assert len(data) < 10_000
        assert sum(np.prod(t.dims, initial=1) for t in proto.graph.initializer) < 32  # no weight is frozen


def test_the_gate_sees_a_graph_that_ignores_a_tensor(graphs: dict[str, bytes]) -> None:
    proto = onnx.load_from_string(graphs["gyro"])
    frozen = numpy_helper.from_array(np.full(8, 0.25, np.float32), "frozen")
    proto.graph.initializer.append(frozen)
    for node in proto.graph.node:
        node.input[:] = ["frozen" if i == "encoder/gyro/fc.bias" else i for i in node.input]
    with pytest.raises(Refused, match="differ at gyro, network 1, batch 1") as info:
        check(proto.SerializeToString(), TASK, TASK.modality("gyro"))
    assert info.value.reason is Reason.OUT_OF_BOUNDS


def test_the_gate_sees_gates_in_another_order(graphs: dict[str, bytes]) -> None:
    proto = onnx.load_from_string(graphs["gyro"])
    node = next(n for n in proto.graph.node if n.op_type == "Concat")
    node.input[:] = [node.input[i] for i in (0, 2, 1, 3)]
    with pytest.raises(Refused, match="differ at gyro"):
        check(proto.SerializeToString(), TASK, TASK.modality("gyro"))


def test_an_agent_refuses_tensors_that_are_not_the_graph_s(graphs: dict[str, bytes]) -> None:
    graph, encoder = EncoderModel(graphs["acc"]), to_blobs(build(TASK))["encoder/acc"]
    x = np.zeros((2, 3, 20), np.float32)
    assert graph.run(x[:0], encoder).shape == (0, 8)
    with pytest.raises(Refused, match=r"tensor 'encoder/acc/fc.bias' \(1 such\)"):
        graph.run(x, {n: t for n, t in encoder.items() if not n.endswith("fc.bias")})
    with pytest.raises(Refused, match="'encoder/acc/more'"):
        graph.run(x, encoder | {"encoder/acc/more": np.zeros(1, np.float32)})
    with pytest.raises(Refused, match=r"'encoder/acc/fc.bias' has shape \(9,\), the ONNX model takes \(8,\)"):
        graph.run(x, encoder | {"encoder/acc/fc.bias": np.zeros(9, np.float32)})
    with pytest.raises(Refused, match=r"windows are \(3, 21\).*takes \(3, 20\)"):
        graph.run(np.zeros((2, 3, 21), np.float32), encoder)
    with pytest.raises(Refused, match="does not run"):  # onnxruntime's own refusal: another type
        graph.run(x, encoder | {"encoder/acc/fc.bias": np.zeros(8, np.float64)})
    with pytest.raises(Refused, match="not finite") as info:
        graph.run(x, encoder | {"encoder/acc/fc.bias": np.full(8, np.nan, np.float32)})
    assert info.value.reason is Reason.NON_FINITE


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "load"), (b"\x08junk" * 99, "load"), (b"0" * 2**21, "at most")]
)
def test_an_agent_refuses_what_is_no_graph(data: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words):
        EncoderModel(data)


def test_an_agent_refuses_another_graph() -> None:
    x = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1, 4])
    z = helper.make_tensor_value_info("feature", TensorProto.FLOAT, [None, 1, 4])
    graph = helper.make_graph([helper.make_node("Relu", ["y"], ["feature"])], "g", [x], [z])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    with pytest.raises(Refused, match="gives feature of y, not 'feature' of 'x'"):
        EncoderModel(proto.SerializeToString())


@pytest.mark.long
def test_a_job_leaves_the_graphs_and_says_their_digests(tmp_path: Path, graphs: dict[str, bytes]) -> None:
    (tmp_path / "job.json").write_text(FeaturesJob(kind="features", task=TASK).model_dump_json())
    (tmp_path / "old.onnx").write_bytes(b"of a job before")
    do(tmp_path)
    result = json.loads((tmp_path / "result.json").read_bytes())["graphs"]
    assert {name: (tmp_path / said["file"]).read_bytes() for name, said in result.items()} == graphs
    for name, said in result.items():
        assert (said["digest"], said["size"]) == (digest(graphs[name]), len(graphs[name]))
        assert said["parity"]["max_difference"] < 1e-5
    assert not (tmp_path / "old.onnx").exists()


def test_a_wrong_features_job_names_its_field(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"kind": "features", "version": 3}))
    with pytest.raises(Misconfigured, match=r"job\.json: task"):
        do(tmp_path)
