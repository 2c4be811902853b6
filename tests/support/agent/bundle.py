"""Tiny ONNX bundles for tests: the class is the sign of the first channel's mean, plus a constant."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from protocol.bundle import BundleManifest, pack
from protocol.messages import BlobRef
from protocol.tasks.task import Task


def tiny_onnx(task: Task, samples: int | None = None, bias: float = 0.0, present: str = "present") -> bytes:
    """probabilities = softmax of (mean of the first modality's first channel + bias) * (1, 0, -1)."""
    first = task.modalities[0]
    inputs = [
        helper.make_tensor_value_info(
            m.name, TensorProto.FLOAT, ["batch", m.channels, samples or task.samples(m.name)]
        )
        for m in task.modalities
    ]
    inputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, ["batch", len(task.modalities)]))
    classes = len(task.labels)
    weights = np.linspace(1, -1, classes, dtype=np.float32)[None]
    nodes = [
        helper.make_node("ReduceMean", [first.name, "axes"], ["mean_BC"], keepdims=0),
        helper.make_node("Gather", ["mean_BC", "zero"], ["mean_B1"], axis=1),
        helper.make_node("Add", ["mean_B1", "bias"], ["moved"]),
        helper.make_node("MatMul", ["moved", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", classes])
        for name in ("probabilities", "logits")
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [2]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("bias", TensorProto.FLOAT, [1], [bias]),
        helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel()),
    ]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def bundle(task: Task, version: int = 1, content: bytes | None = None, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "task": task.name,
        "method": task.method,
        "version": version,
        "labels": task.labels,
        "modalities": task.modalities,
        "window": task.window,
        "samples": {m.name: task.samples(m.name) for m in task.modalities},
        "inputs": (*task.modality_names, "present"),
        "outputs": ("probabilities", "logits"),
        "round": version,
        "base": "0" * 64,
    }
    manifest = BundleManifest.model_validate({**fields, **changes})
    return pack(manifest, {"model.onnx": tiny_onnx(task) if content is None else content})


def ref_of(data: bytes) -> BlobRef:
    from protocol.frames.frame import digest  # noqa: PLC0415 - only here

    return BlobRef(digest=digest(data), size=len(data))
