import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.onnx_graph import to_onnx
from export.parity.cases import MAX_MASKS, masks_of
from export.parity.gate import check, session
from models.multimodal.inference import InferenceModel
from models.multimodal.network import build
from protocol.errors import Reason, Refused
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality
from tests.support.tasks import sensors, small_network, small_task

TASK = small_task(
    (Modality(name="acc", channels=3, rate_hz=10, offset=9.8, scale=4.0), *sensors(gyro=(2, 10))),
    network=small_network(
        acc=Encoder(kind="cnn1d", width=4, depth=2), gyro=Encoder(kind="lstm", width=5, depth=1)
    ),
)


def made(impute: str = "prototype") -> InferenceModel:
    torch.manual_seed(5)
    net = build(TASK)
    net(torch.randn(8, 3, 20) * 4 + 9.8, torch.randn(8, 2, 20))
    tables = {name: (torch.randn(3, 8), torch.ones(3)) for name in net.names}
    return InferenceModel(net, tables, impute=impute)


@pytest.fixture(scope="module")
def reference() -> InferenceModel:
    return made()


@pytest.fixture(scope="module")
def model(reference: InferenceModel) -> bytes:
    return to_onnx(reference, TASK)


def changed(model: bytes, name: str, change) -> bytes:
    proto = onnx.load_from_string(model)
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(name):
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
            return proto.SerializeToString()
    raise AssertionError(name)


def test_a_sound_graph_passes_with_every_mask_and_batch(reference: InferenceModel, model: bytes) -> None:
    found = check(model, reference, TASK)
    assert found.batches == (1, 2, 7, 32)
    assert found.masks == 4
    assert found.samples == dict.fromkeys(("acc", "gyro"), (20, 10, 21, 40))
    # of every batch size every mask, and one batch of mixed masks; of every other length two batches
    assert found.cases == 4 * (4 + 1) + 3 * 2
    assert found.max_difference < 1e-6
    assert 0 < found.latency_ms < 1000
    assert set(found.as_dict()) - set(found.for_manifest()) == {"latency_ms", "latency_batch_ms"}
    empty = {"by_output", "int8", "latency_int8_ms", "latency_batch_int8_ms"}
    assert set(found.as_dict()) == {field.name for field in dataclasses.fields(found)} - empty
    assert "windows of 20, 10, 21, 40 samples" in found.words()


def test_a_wrong_weight_is_refused_with_batch_mask_and_difference(reference, model) -> None:
    broken = changed(model, "head.fc2.weight", lambda w: w + np.float32(0.05))
    with pytest.raises(
        Refused, match=r"batch 1, present: \w+.*probabilities by \d\.\d\de-\d+.*at most 1e-04"
    ) as info:
        check(broken, reference, TASK)
    assert info.value.reason is Reason.OUT_OF_BOUNDS


def test_a_wrong_recurrent_weight_is_found(reference, model) -> None:
    broken = changed(model, "lstm.r0", lambda r: np.roll(r, 5, axis=1))  # gates in another order
    with pytest.raises(Refused, match="present: gyro"):
        check(broken, reference, TASK)


@pytest.mark.long
def test_another_rule_for_what_is_missing_is_found_at_the_mask_that_shows_it(reference) -> None:
    other = to_onnx(made("zero_feature"), TASK)
    with pytest.raises(Refused, match="batch 1, present: gyro:") as info:
        check(other, reference, TASK)
    assert "acc" not in str(info.value)


@pytest.mark.long
def test_what_saturated_probabilities_hide_is_seen_in_the_scores() -> None:
    class Sharp(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.inner, self.by = made(), by

        def forward(self, present: torch.Tensor, *x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            _, logits = self.inner(present, *x)
            saturated = logits + torch.tensor([60.0, 0.0, 0.0])
            return torch.softmax(saturated, dim=1), saturated * self.by

    graph = to_onnx(Sharp(1.0), TASK)
    check(graph, Sharp(1.0), TASK)
    with pytest.raises(Refused, match=r"probabilities by 0\.00e\+00.*scores by"):
        check(graph, Sharp(1.01), TASK)


@pytest.mark.long
def test_a_graph_that_lets_a_missing_modality_through_is_refused(reference) -> None:
    class Multiplies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made()

        def forward(self, present: torch.Tensor, *x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            masked = [x_BCT * present[:, m, None, None] for m, x_BCT in enumerate(x)]
            return self.inner(torch.ones_like(present), *masked)

    with pytest.raises(Refused, match="not finite") as info:
        check(to_onnx(Multiplies(), TASK), reference, TASK)
    assert info.value.reason is Reason.NON_FINITE


def test_a_frozen_batch_is_refused(reference, model) -> None:
    proto = onnx.load_from_string(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    with pytest.raises(Refused, match="does not run at batch 1"):
        check(proto.SerializeToString(), reference, TASK)


def test_a_frozen_time_axis_is_refused_where_the_network_takes_any_length(reference, model) -> None:
    proto = onnx.load_from_string(model)
    for value in proto.graph.input[1:]:
        value.type.tensor_type.shape.dim[2].dim_value = 20
    with pytest.raises(Refused, match=r"does not run at batch 1, present: acc, gyro, samples: 10 of acc"):
        check(proto.SerializeToString(), reference, TASK)


class Summed(nn.Module):
    """One score a class from the mean over time; an exporter may have put T into it as a number."""

    any_length = frozenset({"acc", "gyro"})

    def __init__(self, samples: float | None = None) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, present: torch.Tensor, *x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        clean = torch.where(present[:, 0, None, None] > 0.5, x[0], 0.0)
        logits = clean.sum(dim=2) / (clean.shape[2] if self.samples is None else self.samples)
        return torch.softmax(logits, dim=1), logits + 0 * torch.nan_to_num(x[1]).sum(dim=(1, 2)).unsqueeze(1)


@pytest.mark.long
def test_a_length_that_is_frozen_in_a_constant_is_refused() -> None:
    check(to_onnx(Summed(), TASK), Summed(), TASK)
    with pytest.raises(
        Refused, match="differ at batch 1, present: acc, gyro, samples: 10 of acc, 10 of gyro"
    ):
        check(to_onnx(Summed(20.0), TASK), Summed(), TASK)


@pytest.mark.long
def test_where_the_time_axis_is_fixed_the_report_says_so() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made()

        def forward(self, present: torch.Tensor, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer: tuple[torch.Tensor, ...] = self.inner(present, *x)
            return answer

    graph = to_onnx(Fixed(), TASK)
    assert [i.shape[2] for i in session(graph).get_inputs()[1:]] == [20, 20]
    found = check(graph, Fixed(), TASK)
    assert (found.cases, found.samples) == (4 * (4 + 1), {"acc": (20,), "gyro": (20,)})
    assert "windows of 20 samples alone: the network's time axis is fixed" in found.words()


def test_a_reference_that_is_not_finite_never_passes(model) -> None:
    reference = made()
    with torch.no_grad():
        reference.net.head.fc2.bias[0] = float("nan")
    with pytest.raises(Refused, match="differ"):
        check(model, reference, TASK)


def test_bytes_that_are_no_model_are_refused_in_words() -> None:
    with pytest.raises(Refused, match="onnxruntime cannot load"):
        session(b"not a model")


def test_masks_are_all_of_them_or_a_bounded_choice() -> None:
    assert sorted(masks_of(2)) == [(False, False), (False, True), (True, False), (True, True)]
    assert len(masks_of(6)) == 64
    many = masks_of(16)
    assert len(many) == len(set(many)) == MAX_MASKS
    assert {(False,) * 16, (True,) * 16} <= set(many)
    assert sum(sum(mask) == 1 for mask in many) == 16
    assert sum(sum(mask) == 15 for mask in many) == 16
