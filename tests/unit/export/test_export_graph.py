import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from export.onnx_graph import OPSET, to_onnx
from export.parity.gate import check, session
from models.multimodal.inference import InferenceModel
from models.multimodal.network import build, two_branch_task
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window


def lstm_task(samples: int, *, depth: int = 1) -> Task:
    network = Network(
        encoders={"gyro": Encoder(kind="lstm", width=6, depth=depth)}, feature_dim=8, hidden_dim=5
    )
    gyro = Modality(name="gyro", channels=2, rate_hz=10, offset=0.5, scale=3.0)
    return Task(
        name="t",
        labels=("a", "b", "c"),
        modalities=(gyro,),
        window=Window(length_s=samples / 10),
        network=network,
    )


def trained_like(task: Task, seed: int = 0, **options) -> InferenceModel:
    """A module whose BatchNorm statistics and prototypes are not their initial ones."""
    torch.manual_seed(seed)
    net = build(task)
    net(*(m.offset + m.scale * torch.randn(16, m.channels, task.samples(m.name)) for m in task.modalities))
    shape = (len(task.labels), task.network.feature_dim)
    tables = {
        name: (torch.randn(shape), torch.tensor([1.0, 0.0] + [3.0] * (shape[0] - 2))) for name in net.names
    }
    return InferenceModel(net, tables, **options)


@pytest.fixture(scope="module")
def reference() -> InferenceModel:
    return trained_like(two_branch_task())


@pytest.fixture(scope="module")
def model(reference: InferenceModel) -> bytes:
    return to_onnx(reference, two_branch_task())


@pytest.mark.long
def test_same_module_same_bytes(reference: InferenceModel, model: bytes) -> None:
    assert to_onnx(reference, two_branch_task()) == model


def test_model_names_no_place_on_this_machine(model: bytes) -> None:
    for trace in (os.getcwd(), str(Path.home()), "site-packages", ".py", "stack_trace", "torch"):  # noqa: PTH109
        assert trace.encode() not in model, trace


def test_inputs_outputs_and_opset_are_as_documented(model: bytes) -> None:
    proto = onnx.load_from_string(model)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", OPSET)]
    loaded = session(model)
    shapes = {i.name: i.shape for i in loaded.get_inputs()}
    assert shapes.pop("present") == ["batch", 2]
    assert {name: shape[:2] for name, shape in shapes.items()} == {
        "accelerometer": ["batch", 3],
        "gyroscope": ["batch", 3],
    }
    assert all(isinstance(shape[2], str) for shape in shapes.values()), "any time length"
    assert [(o.name, o.shape) for o in loaded.get_outputs()] == [
        ("probabilities", ["batch", 6]),
        ("logits", ["batch", 6]),
    ]
    assert {i.type for i in loaded.get_inputs()} == {"tensor(float)"}


def test_exporting_leaves_the_module_as_it_was(reference: InferenceModel) -> None:
    assert isinstance(reference.net.encoders["gyroscope"].lstm, torch.nn.LSTM)


@pytest.mark.long
def test_a_stacked_lstm_passes_the_gate_and_does_not_grow_with_the_window() -> None:
    kinds = []
    for samples, others in ((1, 1), (50, 3)):
        task = lstm_task(samples, depth=2)
        reference = trained_like(task)
        model = to_onnx(reference, task)
        found = check(model, reference, task)
        assert (found.masks, found.cases) == (2, 4 * 3 + 2 * others)
        kinds.append(Counter(node.op_type for node in onnx.load_from_string(model).graph.node))
    # torch's own decomposition unrolls an LSTM step by step.
    assert kinds[0] == kinds[1]
    assert kinds[0]["LSTM"] == 2


def test_onnxruntime_fills_in_what_is_missing_as_torch_does(reference: InferenceModel, model: bytes) -> None:
    torch.manual_seed(9)
    a, g = torch.randn(5, 3, 128), torch.full((5, 3, 128), float("nan"))
    present = torch.tensor([[1.0, 0.0]]).repeat(5, 1)
    feed = {"present": present.numpy(), "accelerometer": a.numpy(), "gyroscope": g.numpy()}
    got, _ = session(model).run(None, feed)
    with torch.no_grad():
        want, _ = reference(present, a, g)
        zeros, _ = trained_like(two_branch_task(), impute="zero_feature")(present, a, g)
    assert np.allclose(got, want.numpy(), atol=1e-5)
    assert not np.allclose(got, zeros.numpy(), atol=1e-3)


def test_an_lstm_that_cannot_be_handed_over_is_refused_not_approximated() -> None:
    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, bidirectional=True, batch_first=True)

    with pytest.raises(ValueError, match="one direction"):
        to_onnx(Other(), two_branch_task())
