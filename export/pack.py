"""From a global state to a bundle: build the inference module, export it, gate it, pack it."""

from dataclasses import dataclass
from importlib import import_module

from torch import nn

from export.graph import to_onnx
from export.own import paths_of
from export.parity import Parity, check
from export.surface import surface_of
from models.contract import Blobs
from models.registry import method
from protocol.bundle import BundleManifest, pack
from protocol.errors import Misconfigured
from protocol.task import Task

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class Lineage:
    """Where a version comes from: fields of ``protocol.bundle.BundleManifest``."""

    version: int
    round: int
    base: str
    parent: str | None
    metrics: dict[str, float]


def inference_module(task: Task, state: Blobs) -> nn.Module:
    """What the task's method runs on a device for this state.

    Raises:
        Misconfigured: the method is unknown, or makes no model for devices.
        Refused: the state's tensors are not the network's.
    """
    spec = method(task.method)
    spec.configure(task)
    client = import_module(f"models.methods.{spec.name}.client").make_client()
    make = getattr(client, "inference_model", None)
    if make is None:
        raise Misconfigured(
            f"task {task.name!r}: method {task.method!r} makes no model that a device could run"
        )
    module: nn.Module = make(task, state)
    return module.eval()


def make_bundle(task: Task, state: Blobs, lineage: Lineage) -> tuple[bytes, Parity]:
    """Export, gate and pack a state. The same state and lineage give the same bytes.

    Args:
        task: names and options.
        state: a global state; of a routed method also one that holds the blobs of one route: the bundle is
            that device's (``RoutedServer.serving_route``), and reads and predicts what it does.
        lineage: for the manifest.

    Raises:
        Misconfigured: see :func:`inference_module`.
        Refused: the state is not the network's, or the graph does not compute what torch computes.
    """
    module = inference_module(task, state)
    spec = method(task.method)
    own = paths_of(module, spec.personal(spec.configure(task)))
    surface = surface_of(module, task)
    model = to_onnx(module, task, own)
    parity = check(model, module, task, own)
    manifest = BundleManifest(
        task=task.name,
        method=task.method,
        version=lineage.version,
        labels=task.labels,
        modalities=surface.modalities,
        window=task.window,
        samples=dict(surface.samples),
        inputs=surface.inputs,
        outputs=surface.outputs,
        targets=None if surface.only_label else surface.targets,
        generated=tuple(dict.fromkeys(surface.generated.values())) or None,
        overridable=tuple(own),
        round=lineage.round,
        base=lineage.base,
        parent=lineage.parent,
        metrics=lineage.metrics,
        files={},
        parity=parity.for_manifest(),
    )
    return pack(manifest, {MODEL_FILE: model}), parity
