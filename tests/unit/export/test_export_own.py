import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.bundle_builder import Lineage, inference_module, make_bundle
from export.int8.variants import NO_WINDOWS
from export.onnx_graph import to_onnx
from export.overridable_inputs import examples, paths_of, replaced, values_of
from export.parity.gate import check, session
from models.multimodal.inference import InferenceModel
from models.multimodal.network import build
from models.registry import method
from protocol.bundle import unpack
from protocol.errors import Reason, Refused
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality
from tests.support.tasks import sensors, small_network, small_task

pytestmark = pytest.mark.long

TASK = small_task(
    (Modality(name="acc", channels=3, rate_hz=10, offset=9.8, scale=4.0), *sensors(gyro=(2, 10))),
    "abcd",
    network=small_network(
        acc=Encoder(kind="cnn1d", width=4, depth=2), gyro=Encoder(kind="lstm", width=5, depth=1)
    ),
)
BOTH = ("head", "prototypes")
OUTPUTS = ("probabilities", "logits")
LINEAGE = Lineage(3, 3, "0" * 64, None, {})


def made(trained: list[float] | None = None, impute: str = "prototype") -> InferenceModel:
    """Class d has a prototype in acc alone."""
    torch.manual_seed(5)
    net = build(TASK)
    net(torch.randn(8, 3, 20) * 4 + 9.8, torch.randn(8, 2, 20))
    tables = {
        "acc": (torch.randn(4, 8), torch.tensor([1.0, 2, 0, 3])),
        "gyro": (torch.randn(4, 8), torch.tensor([1.0, 2, 4, 0])),
    }
    novel = None if trained is None else np.array(trained, np.float32)
    return InferenceModel(net, tables, impute=impute, trained=novel).eval()


@pytest.fixture(scope="module")
def novel() -> InferenceModel:
    """The head was never trained on class d."""
    return made([3, 3, 3, 0])


@pytest.fixture(scope="module")
def graph(novel: InferenceModel) -> bytes:
    return to_onnx(novel, TASK, paths_of(novel, BOTH))


@pytest.fixture(scope="module")
def closed(novel: InferenceModel) -> bytes:
    return to_onnx(novel, TASK)


def windows(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {
        "acc": (9.8 + 4 * rng.standard_normal((batch, 3, 20))).astype(np.float32),
        "gyro": rng.standard_normal((batch, 2, 20)).astype(np.float32),
    }


def test_head_and_tables_are_overridable_and_the_rest_is_not(graph: bytes) -> None:
    loaded = session(graph)
    assert {i.name for i in loaded.get_inputs()} == {"present", "acc", "gyro"}
    shapes = {i.name: i.shape for i in loaded.get_overridable_initializers()}
    assert shapes == {
        "head/fc1.weight": [6, 16],
        "head/fc1.bias": [6],
        "head/fc2.weight": [4, 6],
        "head/fc2.bias": [4],
        "prototypes/acc/values": [4, 8],
        "prototypes/acc/rounds": [4],
        "prototypes/gyro/values": [4, 8],
        "prototypes/gyro/rounds": [4],
    }
    assert [o.name for o in loaded.get_outputs()][:2] == list(OUTPUTS)


def test_the_same_module_gives_the_same_bytes(novel: InferenceModel, graph: bytes) -> None:
    assert to_onnx(novel, TASK, paths_of(novel, BOTH)) == graph


def test_fed_nothing_it_computes_what_the_closed_graph_computes(closed: bytes, graph: bytes) -> None:
    shut, opened = session(closed), session(graph)
    for present in ([1, 1], [1, 0], [0, 1], [0, 0]):
        feed = {"present": np.array([present] * 3, np.float32), **windows(3)}
        for a, b in zip(shut.run(list(OUTPUTS), feed), opened.run(list(OUTPUTS), feed), strict=True):
            assert np.allclose(a, b, atol=1e-6)


def test_the_defaults_can_be_read_from_the_graph(novel: InferenceModel, graph: bytes) -> None:
    want = values_of(novel, paths_of(novel, BOTH))
    got = session(graph).run(list(want), {"present": np.zeros((1, 2), np.float32), **windows(1)})
    assert all(np.array_equal(a, b) for a, b in zip(got, want.values(), strict=True))


def test_the_gate_tries_own_tensors_at_every_mask_and_batch(novel: InferenceModel, graph: bytes) -> None:
    found = check(graph, novel, TASK, paths_of(novel, BOTH))
    assert found.replaced == 2
    assert found.cases == 3 * (4 * (4 + 1) + 3 * 2)
    assert found.max_difference < 1e-5


@pytest.mark.parametrize("impute", ["mean_feature", "zero_feature", "zero_input"])
def test_own_tensors_pass_the_gate_whatever_fills_in(impute: str) -> None:
    module = made([1, 1, 1, 0] if impute == "mean_feature" else None, impute)
    paths = paths_of(module, BOTH)
    check(to_onnx(module, TASK, paths), module, TASK, paths)


def test_a_class_becomes_novel_by_the_device_s_own_prototype(novel: InferenceModel, graph: bytes) -> None:
    """With no prototype of d the head answers; with the device's own the nearest prototype does."""
    feed = {"present": np.ones((1, 2), np.float32), **windows(1)}
    paths = paths_of(novel, BOTH)
    base = values_of(novel, paths)
    none = {"prototypes/acc/rounds": np.array([1, 2, 0, 0], np.float32)}
    some = {"prototypes/gyro/rounds": np.array([1, 2, 4, 1], np.float32)}
    run = session(graph).run
    head, logits = run(list(OUTPUTS), feed | none)
    assert np.allclose(head, torch.softmax(torch.from_numpy(logits), 1).numpy(), atol=1e-6)
    own, _ = run(list(OUTPUTS), feed | some)
    assert not np.allclose(own, head, atol=1e-3)
    arguments = tuple(torch.from_numpy(feed[n]) for n in ("present", "acc", "gyro"))
    with torch.no_grad():
        want = replaced(novel, paths, base | some, arguments)[0].numpy()
    assert np.allclose(own, want, atol=1e-5)


def test_the_gate_sees_a_graph_that_ignores_an_own_tensor(novel: InferenceModel, graph: bytes) -> None:
    paths = paths_of(novel, BOTH)
    for name, value in values_of(novel, paths).items():
        proto = onnx.load_from_string(graph)
        proto.graph.initializer.append(numpy_helper.from_array(value, "frozen"))
        for node in proto.graph.node:
            node.input[:] = ["frozen" if i == name else i for i in node.input]
        with pytest.raises(Refused, match="own head/") as info:
            check(proto.SerializeToString(), novel, TASK, paths)
        assert info.value.reason is Reason.OUT_OF_BOUNDS, name


def test_the_gate_sees_a_closed_graph_where_an_open_one_is_promised(
    novel: InferenceModel, closed: bytes
) -> None:
    with pytest.raises(Refused, match="can replace nothing in the ONNX model, not head/fc1"):
        check(closed, novel, TASK, paths_of(novel, BOTH))


def test_examples_have_tables_without_any_prototype(novel: InferenceModel) -> None:
    defaults = values_of(novel, paths_of(novel, BOTH))
    mixed, bare = examples(defaults)
    assert mixed.keys() == bare.keys() == defaults.keys()
    assert not bare["prototypes/acc/rounds"].any()
    assert all(not np.array_equal(mixed[name], value) for name, value in defaults.items())


@pytest.mark.parametrize(
    ("personal", "parts"),
    [("none", set()), ("head", {"head"}), ("prototypes", {"prototypes"}), ("both", set(BOTH))],
)
def test_a_bundle_opens_what_the_task_calls_personal(personal: str, parts: set[str]) -> None:
    task = TASK.model_copy(update={"config": {"personal": personal}})
    state = method("qqr").client().initial(task, 1)
    data, parity = make_bundle(task, state, LINEAGE)
    manifest, files = unpack(data)
    assert {name.split("/")[0] for name in manifest.overridable} == parts
    assert (parity.replaced > 0) == bool(parts)
    found = session(files["model.onnx"]).get_overridable_initializers()
    assert sorted(i.name for i in found) == sorted(manifest.overridable)
    assert personal != "both" or make_bundle(task, state, LINEAGE)[0] == data


def test_where_nothing_is_personal_the_graph_is_closed() -> None:
    state = method("qqr").client().initial(TASK, 1)
    module = inference_module(TASK, state)
    made, parity = make_bundle(TASK, state, LINEAGE)
    manifest, files = unpack(made)
    assert files == {"model.onnx": to_onnx(module, TASK)}
    assert manifest.variants is None
    assert manifest.parity["int8"] == NO_WINDOWS, "without windows there is no int8 variant"
    assert NO_WINDOWS in parity.words()
