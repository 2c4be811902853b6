"""Graphs that read a part of a task's modalities and predict several things."""

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export import bundle_builder as export_pack
from export.bundle_builder import Lineage, make_bundle
from export.onnx_graph import to_onnx
from export.overridable_inputs import examples, paths_of, values_of
from export.parity.gate import check, session
from export.parity.tolerances import LOGIT_TOLERANCE, TOLERANCE, gaps, measures
from export.signature import surface_of
from protocol.bundle import unpack
from protocol.errors import Reason, Refused
from tests.support.methods.several_targets import TASK, Several

NAMES = (
    "probabilities",
    "logits",
    "pose/probabilities",
    "pose/logits",
    "speed/value",
    "picture/window",
)
LINEAGE = Lineage(3, 3, "0" * 64, None, {})


@pytest.fixture(scope="module")
def module() -> Several:
    return Several().eval()


@pytest.fixture(scope="module")
def graph(module: Several) -> bytes:
    return to_onnx(module, TASK, paths_of(module, ("last",)))


def changed(graph: bytes, find: str, change) -> bytes:
    """The graph with the initializer of that name changed."""
    proto = onnx.load_from_string(graph)
    (tensor,) = [t for t in proto.graph.initializer if t.name == find]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), find))
    return proto.SerializeToString()


def test_the_graph_s_outside_is_the_module_s(graph: bytes) -> None:
    loaded = session(graph)
    assert {i.name: i.shape[1:] for i in loaded.get_inputs()} == {
        "present": [2],
        "acc": [2, 12],
        "gyro": [3, 12],
    }
    shapes = {o.name: o.shape[1:] for o in loaded.get_outputs()}
    assert tuple(shapes)[:6] == NAMES
    assert [shapes[name] for name in NAMES] == [[3], [3], [2], [2], [], [1, 6]]


@pytest.mark.parametrize(
    ("modalities", "targets", "masks"),
    [(("gyro",), ("speed",), 2), (("acc", "gyro"), ("picture", "label"), 4)],
)
def test_any_part_of_a_task_passes_the_gate(modalities, targets, masks: int) -> None:
    part = Several(modalities, targets).eval()
    own = paths_of(part, ("last",))
    seen = check(to_onnx(part, TASK, own), part, TASK, own)
    assert seen.masks == masks
    assert seen.cases == 3 * 4 * (masks + 1)
    assert set(seen.by_output) == set(surface_of(part, TASK).outputs)


def test_the_gate_measures_every_output_with_own_last_layers_too(module: Several, graph: bytes) -> None:
    seen = check(graph, module, TASK, paths_of(module, ("last",)))
    assert seen.replaced == 2
    assert tuple(seen.by_output) == NAMES
    assert seen.as_dict()["by_output"] == seen.by_output
    assert seen.max_difference == max(seen.by_output[n] for n in NAMES if "probabilities" in n) < 1e-5
    assert seen.max_logit_difference == max(seen.by_output[n] for n in NAMES if "prob" not in n) < 1e-5


@pytest.mark.parametrize("target", ["label", "pose", "speed", "picture"])
def test_one_wrong_output_is_refused_by_its_name(module: Several, graph: bytes, target: str) -> None:
    wrong = changed(
        graph,
        f"last/{target}/fc.bias",
        lambda b: b + np.float32(0.2) * np.arange(1, 1 + b.size, dtype=np.float32).reshape(b.shape),
    )
    with pytest.raises(Refused, match="differ at batch 1") as info:
        check(wrong, module, TASK, paths_of(module, ("last",)))
    assert info.value.reason is Reason.OUT_OF_BOUNDS
    found = dict(re.findall(r"(\S+) by (\d\.\d\de[+-]\d\d)", str(info.value)))
    bad = {
        name for name, gap in found.items() if float(gap) > (TOLERANCE if "prob" in name else LOGIT_TOLERANCE)
    }
    wanted = {
        "label": {"probabilities", "scores"},
        "pose": {"pose/probabilities", "pose/scores"},
        "speed": {"speed/value"},
        "picture": {"picture/window"},
    }
    assert bad == wanted[target]


def test_a_graph_that_ignores_one_own_last_layer_is_seen(module: Several, graph: bytes) -> None:
    for name, value in values_of(module, paths_of(module, ("last",))).items():
        proto = onnx.load_from_string(graph)
        proto.graph.initializer.append(numpy_helper.from_array(value, "frozen"))
        for node in proto.graph.node:
            node.input[:] = ["frozen" if i == name else i for i in node.input]
        with pytest.raises(Refused, match="own last/") as info:
            check(proto.SerializeToString(), module, TASK, paths_of(module, ("last",)))
        assert info.value.reason is Reason.OUT_OF_BOUNDS, name


@pytest.mark.long
def test_the_same_module_gives_the_same_bytes(module: Several, graph: bytes) -> None:
    assert to_onnx(module, TASK, paths_of(module, ("last",))) == graph


def test_two_targets_that_change_places_are_seen() -> None:
    """Same shapes everywhere: only the values tell."""
    swapped, module = Several(("acc",), ("speed",)).eval(), Several(("acc",), ("speed",), seed=9).eval()
    with pytest.raises(Refused, match="speed/value by"):
        check(to_onnx(swapped, TASK), module, TASK)


def test_values_are_measured_as_the_network_gives_them() -> None:
    """Of speed: offset 1000, scale 0.5. Half a scale is a gap of one half; what the offset rounds is none."""
    measured = measures(surface_of(Several(("acc",), ("speed",)), TASK))
    want = np.array([1000.0, 1001.0], np.float32)
    near = np.nextafter(want, np.float32(2000))
    assert gaps(measured, [near], [want], "x") == {"speed/value": 0.0}
    with pytest.raises(Refused, match=r"at x: speed/value by 5\.00e-01 \(at most 1e-03\)"):
        gaps(measured, [want + np.float32([0.25, 0])], [want], "x")
    with pytest.raises(Refused, match="speed/value by nan"):
        gaps(measured, [want], [np.array([1000.0, np.nan], np.float32)], "x")
    with pytest.raises(Refused, match=r"speed/value is \(1,\), in torch \(2,\)"):
        gaps(measured, [want[:1]], [want], "x")


def test_own_weights_deep_in_a_network_move_less_and_never_stay_as_they_are() -> None:
    zeros = np.zeros((3, 4), np.float32)
    for one in ("base/acc/up.weight", "last/label/fc.weight"):
        mixed, _ = examples({one: zeros})
        assert mixed[one].all()
    moved = {
        part: np.abs(examples({f"{part}/a/w": zeros})[0][f"{part}/a/w"]).max() for part in ("base", "last")
    }
    assert moved["base"] < 0.1 < moved["last"]


def test_a_bundle_says_what_it_reads_predicts_and_generates(monkeypatch) -> None:
    for modalities, targets in ((("gyro",), ("pose", "picture")), (("acc", "gyro"), ("label",))):
        part = Several(modalities, targets).eval()
        monkeypatch.setattr(export_pack, "inference_module", lambda _task, _state, part=part: part)
        data, parity = make_bundle(TASK, {}, LINEAGE)
        manifest, _ = unpack(data)
        assert tuple(m.name for m in manifest.modalities) == modalities
        assert manifest.inputs == ("present", *modalities)
        assert manifest.outputs == surface_of(part, TASK).outputs
        assert manifest.predicted == part.targets
        assert manifest.overridable == tuple(sorted(part.wire()))
        assert manifest.parity == parity.for_manifest()
        if targets == ("label",):
            assert (manifest.targets, manifest.generated) == (None, None)
            assert set(manifest.samples) == {"acc", "gyro"}
        else:
            assert manifest.generated == (TASK.modality("cam"),)
            assert manifest.samples == {"gyro": 12, "cam": 6}
