"""What an export gives for every method: graphs that pass their gates, and an int8 variant or words."""

import numpy as np
import pytest

from edge_agent.inference.onnx_models.compatibility import require_compatible
from export.bundle_builder import Lineage, make_bundle
from export.encoder_models import make_encoder_models
from export.parity.gate import Parity, session
from models.backbones.graph_safety import require_safe_model
from models.contract import Blobs, Profile, WindowSet
from models.registry import methods
from models.spec import MethodSpec
from protocol.bundle import unpack
from protocol.tasks.network import Encoder
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import (
    begun,
    learnt,
    material_of,
    next_state,
    task_of,
    windows_of,
    without_second,
)
from tests.support.own_package import permitted_example, with_own

pytestmark = pytest.mark.long

LINEAGE = Lineage(1, 1, "0" * 64, None, {})
EACH = pytest.mark.parametrize("spec", methods().values(), ids=list(methods()))


def wide(spec: MethodSpec) -> Task:
    """A network that is large enough for int8 to save something."""
    task = task_of(spec)
    if task.graph is not None:
        return task
    encoders = {m.name: Encoder(kind="cnn1d", width=24, depth=3) for m in task.modalities}
    network = task.network.model_copy(update={"encoders": encoders, "feature_dim": 32, "hidden_dim": 48})
    return task.model_copy(update={"network": network})


def trained(spec: MethodSpec, task: Task) -> Blobs:
    state = begun(spec, task)
    updates = [learnt(spec, task, state, f"d{i}", material_of(task, i)) for i in range(2)]
    made = next_state(spec, task, 2, state, updates)
    return {name: blob for name, blob in made.items() if name.split("/")[0] not in spec.owned}


def real_windows(task: Task) -> WindowSet | None:
    return None if task.graph is not None else windows_of(task, seed=9, count=64, missing=0.2)


@EACH
def test_every_method_s_bundle_fits_its_task_and_says_what_became_of_int8(spec: MethodSpec) -> None:
    task = wide(spec)
    state, windows = trained(spec, task), real_windows(task)
    data, _ = make_bundle(task, state, LINEAGE, windows)
    manifest, files = unpack(data)
    require_compatible(manifest, task, task.modality_names)
    assert set(files) == {"model.onnx", *(v.file for v in (manifest.variants or {}).values())}
    for name, graph in files.items():
        require_safe_model(graph, name)
        assert {i.name for i in session(graph).get_inputs()} == set(manifest.inputs)
    if windows is None:
        assert (manifest.variants, "int8" in manifest.parity) == (None, False)
    else:
        words = str(manifest.parity["int8"])
        assert ("none: " in words) == (manifest.variants is None), words
        assert "quantized:" not in words, "the tool takes every graph of ours"


@pytest.mark.parametrize("spec", [s for s in methods().values() if s.routed], ids=lambda spec: spec.name)
def test_a_device_s_route_is_exported_with_a_variant_of_its_own(spec: MethodSpec) -> None:
    """Of the modality that the device reads alone; windows without it count for nothing."""
    task = wide(spec)
    state, windows = trained(spec, task), real_windows(task)
    assert windows is not None
    first = task.modality_names[0]
    route = spec.server().serving_route(task, Profile((first,)), None)
    data, parity = make_bundle(task, {name: state[name] for name in route}, LINEAGE, windows)
    manifest, files = unpack(data)
    assert manifest.inputs == ("present", first)
    assert parity.int8
    for graph in files.values():
        (answer, *_) = session(graph).run(
            [manifest.outputs[0]], {"present": np.ones((2, 1), np.float32), first: windows.x[first][:2]}
        )
        assert answer.shape == (2, len(task.labels))
    _, other = make_bundle(task, {name: state[name] for name in route}, LINEAGE, without_first(windows))
    assert "0 windows to calibrate on" in other.int8


def without_first(windows: WindowSet) -> WindowSet:
    only = without_second(windows)
    assert isinstance(only, WindowSet)
    return WindowSet(only.x, only.present_BM[:, ::-1].copy(), only.quality_BM, only.y_B)


def test_encoders_of_a_package_pass_the_gates_of_bundles_and_of_encoder_models() -> None:
    spec = methods()["qqr"]
    task = with_own(wide(spec), permitted_example(), kernel=9)
    data, parity = make_bundle(task, trained(spec, task), LINEAGE, real_windows(task))
    manifest, files = unpack(data)
    require_compatible(manifest, task, task.modality_names)
    require_safe_model(files["model.onnx"], "model.onnx")
    assert isinstance(parity, Parity)
    assert parity.int8
    assert set(make_encoder_models(task)) == set(task.modality_names), "each passed its gate"
