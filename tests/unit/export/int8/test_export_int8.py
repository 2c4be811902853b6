"""The int8 variant: made from real windows, measured against float32, left out in words where it is bad."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from edge_agent.inference.onnx_models.compatibility import require_compatible
from export.bundle_builder import Lineage, inference_module, make_bundle
from export.int8 import quantize, variants
from export.int8.calibration import FEWEST, ranges, read, usable
from export.int8.variants import INT8_FILE, NO_WINDOWS, Made, int8_of
from export.job import ExportJob, _windows
from export.onnx_graph import to_onnx
from export.overridable_inputs import paths_of, values_of
from export.parity.gate import session
from export.signature import surface_of
from models.backbones.graph_safety import require_safe_model
from models.contract import Blobs, WindowSet
from models.data import window_set
from models.registry import method
from protocol.bundle import unpack
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.network import Encoder
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import learnt, next_state, task_of, windows_of
from tests.support.methods.several_targets import TASK as SEVERAL
from tests.support.methods.several_targets import Several

pytestmark = pytest.mark.long

LINEAGE = Lineage(2, 2, "0" * 64, None, {})


def task_with(kind: str = "cnn1d", **config: object) -> Task:
    task = task_of(method("qqr"))
    encoders = {m.name: Encoder(kind=kind, width=24, depth=3) for m in task.modalities}
    network = task.network.model_copy(update={"encoders": encoders, "feature_dim": 32, "hidden_dim": 48})
    return task.model_copy(update={"network": network, "config": {"epochs": 6, "batch": 16, **config}})


@pytest.fixture(scope="module")
def state() -> Blobs:
    """A network that has learnt something: where it is sure of nothing, rounding decides."""
    task, spec = task_with(), method("qqr")
    made = spec.client().initial(task, 3)
    for round_ in (1, 2):
        updates = [learnt(spec, task, made, f"d{i}", windows_of(task, i, count=48)) for i in range(2)]
        made = next_state(spec, task, round_, made, updates)
    return made


@pytest.fixture(scope="module")
def windows() -> WindowSet:
    return windows_of(task_with(), seed=50, count=96, missing=0.2)


@dataclass(frozen=True)
class ModelGraph:
    """One exported, and what it was exported from."""

    task: Task
    module: nn.Module
    own: dict[str, str]
    model: bytes


def exported(state: Blobs, parts: tuple[str, ...] = (), **config: object) -> ModelGraph:
    task = task_with(**config)
    module = inference_module(task, state)
    own = paths_of(module, parts)
    return ModelGraph(task, module, own, to_onnx(module, task, own))


def variant_of(graph: ModelGraph, windows: WindowSet | None) -> Made:
    return int8_of(graph.model, graph.task, surface_of(graph.module, graph.task), graph.own, windows)


@pytest.fixture(scope="module")
def graph(state: Blobs) -> ModelGraph:
    return exported(state)


@pytest.fixture(scope="module")
def bundle(state: Blobs, windows: WindowSet) -> bytes:
    return make_bundle(task_with(), state, LINEAGE, windows)[0]


def test_a_bundle_has_both_graphs_and_says_how_they_compare(bundle: bytes) -> None:
    manifest, files = unpack(bundle)
    assert set(files) == {"model.onnx", INT8_FILE}
    assert manifest.variants is not None
    variant = manifest.variants["int8"]
    assert (variant.file, variant.precision) == (INT8_FILE, "int8")
    said = variant.measured
    assert said["windows"] == 96
    assert said["bytes"] == len(files[INT8_FILE]) < 0.85 * len(files["model.onnx"])
    assert said["agreement"] >= 0.98
    assert said["agreement_missing"] >= 0.95
    assert 0 < said["mean_difference"] < said["max_difference"] < 0.2
    assert said["accuracy"] > 0.8
    assert said["accuracy_float32"] > 0.8
    assert f"{len(files[INT8_FILE])} bytes instead of {len(files['model.onnx'])}" in manifest.parity["int8"]


def test_the_same_state_and_windows_give_the_same_bytes(bundle, state, windows) -> None:
    again, parity = make_bundle(task_with(), state, LINEAGE, windows)
    assert again == bundle
    assert parity.latency_int8_ms > 0
    assert "latency_int8_ms" not in unpack(bundle)[0].parity


def test_the_variant_is_closed_and_made_of_onnx_s_own_operators(bundle: bytes) -> None:
    _, files = unpack(bundle)
    require_safe_model(files[INT8_FILE], "the variant")
    proto = onnx.load_from_string(files[INT8_FILE])
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 20)]
    assert {node.domain for node in proto.graph.node} == {""}
    kinds = Counter(node.op_type for node in proto.graph.node)
    before = Counter(node.op_type for node in onnx.load_from_string(files["model.onnx"]).graph.node)
    assert {kind: kinds[kind] for kind in ("Conv", "MaxPool")} == {
        kind: before[kind] for kind in ("Conv", "MaxPool")
    }
    assert kinds["QuantizeLinear"] >= before["Conv"] > 0
    weights = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1]
    assert len(weights) >= before["Conv"]
    for trace in ("/tmp", "site-packages", "onnx.quantize", "onnx.infer"):  # noqa: S108 - looked for, not used
        assert trace.encode() not in files[INT8_FILE]


def test_it_runs_at_every_batch_mask_and_length_with_the_inputs_of_the_other(bundle: bytes) -> None:
    manifest, files = unpack(bundle)
    both = [session(files[name]) for name in ("model.onnx", INT8_FILE)]
    assert len({tuple((i.name, str(i.shape[1])) for i in s.get_inputs()) for s in both}) == 1
    rng = np.random.default_rng(0)
    for batch, present in ((1, [[1, 0]]), (3, [[0, 0], [0, 1], [1, 1]])):
        for times in (1, 2):
            feed = {
                m.name: rng.normal(0, 1, (batch, m.channels, times * manifest.samples[m.name]))
                for m in manifest.modalities
            }
            inputs = {"present": np.array(present), **feed}
            answers = [s.run(None, {k: v.astype(np.float32) for k, v in inputs.items()})[0] for s in both]
            assert answers[0].shape == answers[1].shape == (batch, 3)
            assert np.allclose(answers[1].sum(axis=1), 1, atol=1e-5)


def test_a_device_takes_a_variant_that_has_a_file_of_its_own_and_no_other(bundle: bytes) -> None:
    task, (manifest, files) = task_with(), unpack(bundle)
    require_compatible(manifest, task, task.modality_names)
    assert manifest.variants is not None
    for wrong in ("gone.onnx", "model.onnx"):
        variant = manifest.variants["int8"].model_copy(update={"file": wrong})
        with pytest.raises(Refused, match=f"calls '{wrong}' a variant") as refused:
            require_compatible(
                manifest.model_copy(update={"variants": {"int8": variant}}), task, task.modality_names
            )
        assert refused.value.reason is Reason.MALFORMED
    twice = {"int8": manifest.variants["int8"], "more": manifest.variants["int8"]}
    with pytest.raises(Refused, match="no file of its own"):
        require_compatible(manifest.model_copy(update={"variants": twice}), task, task.modality_names)
    assert INT8_FILE in files


def test_without_windows_or_with_few_there_is_no_variant_and_it_says_why(graph, windows) -> None:
    few = window_set.select(windows, np.arange(FEWEST - 1))
    for given, words in (
        (None, NO_WINDOWS),
        (few, "none: 31 windows to calibrate on, 32 are the least"),
    ):
        made = variant_of(graph, given)
        assert (made.model, made.variant, made.words) == (None, None, words)


def test_an_lstm_stays_in_float32_and_a_variant_that_saves_little_is_left_out(windows) -> None:
    task = task_with("lstm")
    made, parity = make_bundle(task, method("qqr").client().initial(task, 1), LINEAGE, windows)
    assert "LSTMs stay in float32" in parity.int8
    assert unpack(made)[0].variants is None


def test_what_a_device_may_replace_is_neither_quantized_nor_closed(state, windows) -> None:
    graph = exported(state, ("head", "prototypes"), personal="both")
    made = variant_of(graph, windows)
    assert made.model is not None, made.words
    loaded = session(made.model)
    assert sorted(i.name for i in loaded.get_overridable_initializers()) == sorted(graph.own)
    feed = {"present": np.ones((2, 2), np.float32)} | {
        m.name: windows.x[m.name][:2] for m in graph.task.modalities
    }
    mine = {
        name: np.zeros_like(x)
        for name, x in values_of(graph.module, graph.own).items()
        if name.startswith("head/fc2")
    }
    assert not np.any(loaded.run(["logits"], feed | mine)[0]), "the device's own last layer answers"
    assert np.any(loaded.run(["logits"], feed)[0])


def test_a_variant_that_says_something_else_is_left_out(graph, windows, monkeypatch) -> None:
    real = quantize.quantized

    def of_another(model: bytes, feeds):
        proto = onnx.load_from_string(model)
        (head,) = [t for t in proto.graph.initializer if t.name.endswith("head.fc2.weight")]
        turned = onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(head), head.name)
        head.CopyFrom(turned)
        return real(proto.SerializeToString(), feeds)

    monkeypatch.setattr(variants.quantize, "quantized", of_another)
    made = variant_of(graph, windows)
    assert (made.model, made.variant) == (None, None)
    assert "none: int8 says what float32 says on" in made.words
    assert "% of windows (at least 98 %)" in made.words


def test_weights_are_of_7_bits_for_processors_that_add_up_in_16(graph, windows) -> None:
    """Two products of 8 bits overflow there, and answers are wrong without an error."""
    made = variant_of(graph, windows)
    proto = onnx.load_from_string(made.model)
    weights = [
        onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8
    ]
    large = [w for w in weights if w.size > 1 and w.any()]
    assert large
    assert max(int(np.abs(w.astype(int)).max()) for w in large) in {63, 64}


def test_a_variant_that_does_not_run_is_left_out_and_the_export_goes_on(graph, windows, monkeypatch) -> None:
    def frozen(model: bytes, feeds):
        del feeds
        proto = onnx.load_from_string(model)
        for value in proto.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 3
        return proto.SerializeToString()

    monkeypatch.setattr(variants, "MAX_BYTES", 2)
    monkeypatch.setattr(variants.quantize, "quantized", frozen)
    made = variant_of(graph, windows)
    assert made.model is None
    assert made.words.startswith("none: the exported ONNX model does not run at batch 1")


def test_a_graph_with_nothing_large_has_no_variant() -> None:
    module, rng = Several().eval(), np.random.default_rng(0)
    x = {m.name: rng.normal(0, 1, (40, m.channels, SEVERAL.samples(m.name))) for m in SEVERAL.modalities}
    windows = WindowSet(
        {name: each.astype(np.float32) for name, each in x.items()},
        np.ones((40, 3), np.bool_),
        np.ones((40, 3), np.float32),
        np.zeros(40, np.int64),
    )
    made = int8_of(to_onnx(module, SEVERAL), SEVERAL, surface_of(module, SEVERAL), {}, windows)
    assert (
        made.words
        == "none: the ONNX model has no convolution or large matrix, besides those that a device may replace"
    )


def test_a_sensor_whose_zero_is_far_away_is_calibrated_on_complete_windows_alone(windows) -> None:
    """Air pressure: a missing one is zeros, 200 scales below all that is measured."""
    task = task_with()
    first, second = task.modalities
    far = task.model_copy(
        update={"modalities": (first, second.model_copy(update={"offset": 1013.0, "scale": 5.0}))}
    )
    x = windows.x | {second.name: windows.x[second.name] * 5 + 1013}
    there = replace(windows, x=x, present_BM=np.ones_like(windows.present_BM))
    module = Far(far).eval()
    graph = ModelGraph(far, module, {}, to_onnx(module, far))
    chosen = usable(there, far, surface_of(module, far))
    tried = [
        variants._tried(graph.model, surface_of(module, far), {}, chosen, feeds()) for feeds in ranges(chosen)
    ]
    assert "none: int8 says what float32 says on" in tried[0].words
    assert tried[1].model is not None, tried[1].words
    assert variant_of(graph, there).model == tried[1].model


class Far(nn.Module):
    """Convolutions over the second modality decide; where it is missing nothing does."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.unit = task.modalities[1]
        self.wave = nn.Conv1d(self.unit.channels, 48, 16)
        self.head = nn.Linear(48, 48)
        self.last = nn.Linear(48, 3)

    def forward(self, present: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        here = present > 0.5
        clean = (torch.where(here[:, 1, None, None], x[1], 0.0) - self.unit.offset) / self.unit.scale
        seen = torch.relu(self.head(torch.relu(self.wave(clean)).mean(dim=2)))
        logits = torch.where(here[:, 1:], 20 * self.last(seen), 0.0) + 0 * here[:, :1]
        return torch.softmax(logits, dim=1), logits


def test_a_value_or_a_window_says_the_same_where_it_is_near_in_its_scale() -> None:
    surface = surface_of(Several(), SEVERAL)
    label, _, speed, picture = surface.targets
    want = np.array([[1.0, 2.0], [2.0, 1.0]], np.float32)
    assert variants._alike(surface, label, want, want[:, ::-1]).tolist() == [False, False]
    assert variants._alike(surface, label, want, want * 1.5).tolist() == [True, True]
    kmh = np.array([1000.0, 1001.0], np.float32)  # the scale is 0.5
    assert variants._alike(surface, speed, kmh, kmh + np.float32([0.04, 0.06])).tolist() == [True, False]
    seen = np.zeros((2, 1, 6), np.float32)  # the camera's scale is 60
    off = seen + np.float32([5.0, 7.0])[:, None, None]
    assert variants._alike(surface, picture, seen, off).tolist() == [True, False]


def test_ranges_come_from_complete_windows_where_there_are_enough(graph, windows) -> None:
    task = task_with()
    surface = surface_of(graph.module, task)
    chosen = usable(windows, task, surface)
    complete = int(windows.present_BM.all(axis=1).sum())
    assert len(chosen) == 96 > complete > FEWEST
    masked, plain = (np.concatenate([feed["present"] for feed in feeds()]) for feeds in ranges(chosen))
    assert plain.tolist() == [[1, 1]] * complete
    assert masked.tolist() == [[1, 1]] * complete + [[0, 1]] * complete + [[1, 0]] * complete
    rare = replace(windows, present_BM=windows.present_BM & (np.arange(96) < 20)[:, None])
    some = usable(rare, task, surface)
    assert len(some) == 20, "windows with no modality say nothing"
    (_, plain) = ranges(some)
    assert sum(len(feed["present"]) for feed in plain()) == 20, (
        "too few are complete to do without the others"
    )
    (first, *_) = chosen.feeds("microphone")
    assert first["present"][:, 1].max() == 0
    assert first["present"][:, 0].min() == 1


def test_windows_are_read_from_a_set_and_what_does_not_fit_is_named(tmp_path, windows) -> None:
    task, file = task_with(), tmp_path / "w.npz"
    window_set.save(file, windows)
    assert len(read(task, file)) == 96
    job = ExportJob(task=task, version=1, round=1, manifest_digest="0" * 64, calibrate=str(file))
    found, trouble = _windows(job)
    assert found is not None
    assert (len(found), trouble) == (96, "")
    none, why = _windows(job.model_copy(update={"calibrate": str(tmp_path / "gone.npz")}))
    assert none is None
    assert "gone.npz" in why
    with pytest.raises(Misconfigured, match=r"windows to calibrate on: .*gone\.npz"):
        read(task, tmp_path / "gone.npz")


def test_windows_that_no_range_spans_give_words_and_no_end_of_the_export(graph, windows) -> None:
    """A sensor's word for "no value" is often the largest number that there is."""
    most = np.finfo(np.float32).max
    absurd = replace(windows, x={name: np.full_like(x, most) for name, x in windows.x.items()})
    made = variant_of(graph, absurd)
    assert made.model is None
    assert made.words.startswith("none: it cannot be quantized: ")
