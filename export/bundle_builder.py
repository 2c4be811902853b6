"""Makes a bundle of a global state: inference module, ONNX export, parity gate, pack."""

from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue
from torch import nn

from export import completion
from export.completion import CompletionParity
from export.int8.variants import INT8, INT8_FILE, int8_of
from export.onnx_graph import to_onnx
from export.overridable_inputs import paths_of
from export.parity.gate import Parity, check
from export.signature import surface_of
from models.contract import Blobs, WindowSet
from models.registry import method
from protocol.bundle import COMPLETION_INPUTS, COMPLETION_OUTPUTS, BundleManifest, Variant, pack
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class Lineage:
    """Origin of a version: fields of ``protocol.bundle.BundleManifest``."""

    version: int
    round: int
    base: str
    parent: str | None
    metrics: dict[str, float]
    privacy: dict[str, JsonValue] | None = None
    secure_aggregation: dict[str, JsonValue] | None = None


def inference_module(task: Task, state: Blobs) -> nn.Module:
    """The module that a device runs for this state.

    Raises:
        Misconfigured: the method is unknown, or makes no model for devices.
        Refused: the state's tensors are not the network's.
    """
    spec = method(task.method)
    spec.configure(task)
    client = spec.client()
    make = getattr(client, "inference_model", None)
    if make is None:
        raise Misconfigured(
            f"task {task.name!r}: method {task.method!r} makes no model that a device could run"
        )
    module: nn.Module = make(task, state)
    return module.eval()


@dataclass(frozen=True)
class _Checked:
    """An ONNX model that passed its gate, and its fields of the manifest."""

    files: dict[str, bytes]
    parity: Parity | CompletionParity
    fields: dict[str, Any]
    variants: dict[str, Variant] = field(default_factory=dict)


def make_bundle(
    task: Task, state: Blobs, lineage: Lineage, windows: WindowSet | None = None
) -> tuple[bytes, Parity | CompletionParity]:
    """Export, gate and pack a state. The same state, lineage and windows give the same bytes.

    Args:
        task: names and options.
        state: a global state; for a routed method also the blobs of one route
            (``RoutedServer.serving_route``), which give the bundle of such devices. On knowledge graphs
            without the blobs that devices own: the model takes these as inputs.
        lineage: for the manifest.
        windows: real windows, labelled or not, to calibrate and measure an int8 variant
            (``export.int8.variants``); None makes none. Unused on knowledge graphs.

    Raises:
        Misconfigured: see :func:`inference_module`.
        Refused: the state is not the network's, or the ONNX model differs from torch.
    """
    module = inference_module(task, state)
    checked = _of_windows(module, task, windows) if task.graph is None else _of_graphs(module)
    manifest = BundleManifest(
        task=task.name,
        method=task.method,
        version=lineage.version,
        round=lineage.round,
        base=lineage.base,
        parent=lineage.parent,
        metrics=lineage.metrics,
        privacy=lineage.privacy,
        secure_aggregation=lineage.secure_aggregation,
        files={},
        parity=checked.parity.for_manifest(),
        variants=checked.variants or None,
        **checked.fields,
    )
    return pack(manifest, checked.files), checked.parity


def _of_windows(module: nn.Module, task: Task, windows: WindowSet | None) -> _Checked:
    spec = method(task.method)
    own = paths_of(module, spec.personal(spec.configure(task)))
    surface = surface_of(module, task)
    model = to_onnx(module, task, own)
    parity = check(model, module, task, own)
    int8 = int8_of(model, task, surface, own, windows)
    parity = replace(
        parity,
        int8=int8.words,
        latency_int8_ms=int8.latency_ms,
        latency_batch_int8_ms=int8.latency_batch_ms,
    )
    files = {MODEL_FILE: model}
    if int8.model is not None:
        files[INT8_FILE] = int8.model
    fields = {
        "labels": task.labels,
        "modalities": surface.modalities,
        "window": task.window,
        "samples": dict(surface.samples),
        "inputs": surface.inputs,
        "outputs": surface.outputs,
        "targets": None if surface.only_label else surface.targets,
        "generated": tuple(dict.fromkeys(surface.generated.values())) or None,
        "overridable": tuple(own),
    }
    return _Checked(files, parity, fields, {INT8: int8.variant} if int8.variant is not None else {})


def _of_graphs(module: nn.Module) -> _Checked:
    model = completion.to_onnx(module)
    parity = completion.check(model, module)
    fields = {
        "graph": completion.shape_of(module),
        "inputs": COMPLETION_INPUTS,
        "outputs": COMPLETION_OUTPUTS,
    }
    return _Checked({MODEL_FILE: model}, parity, fields)
