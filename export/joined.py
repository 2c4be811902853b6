"""Backbones and the network behind them as one ONNX model, for programs other than the agent.

It takes windows of what sensors deliver, and applies offset and scale. It passes the gate of all exported
models, against the backbones in ONNX Runtime (each window alone, as a device runs them) and torch after them.

Shapes: B windows, M modalities, C channels, T samples or pixels, D features.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.compose
import onnx.version_converter
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from export.bundle_builder import inference_module
from export.onnx_graph import strip, to_onnx
from export.parity.gate import Parity, check
from export.signature import PRESENT, Surface, surface_of
from models.backbones import files
from models.backbones.model import Run
from models.backbones.views import backbones, layouts, sensed
from models.backbones.windows import runs_of
from models.contract import Blobs
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.task import Modality, Task

_DOMAINS: Final = frozenset({"", "ai.onnx"})


class _OneAfterAnother(nn.Module):
    """Backbones in ONNX Runtime, then an inference module: the reference of the gate.

    Args:
        head: the inference module.
        surface: of it.
        runs: the backbones that it has before it, by modality.
    """

    def __init__(self, head: nn.Module, surface: Surface, runs: Mapping[str, Run]) -> None:
        super().__init__()
        self.head, self._runs = head, runs
        self.modalities, self.targets = surface.names, surface.targets
        self.any_length = surface.any_length - runs.keys()

    def forward(self, present_BM: Tensor, *x_BCT: Tensor) -> tuple[Tensor, ...]:
        """As the inference module, of windows as they are cut."""
        made = [
            self._features(self._runs[name], x, present_BM[:, m] > 0) if name in self._runs else x
            for m, (name, x) in enumerate(zip(self.modalities, x_BCT, strict=True))
        ]
        answer: tuple[Tensor, ...] = self.head(present_BM, *made)
        return answer

    @staticmethod
    def _features(run: Run, x_BCT: Tensor, there_B: Tensor) -> Tensor:
        rows_N = torch.nonzero(there_B)[:, 0]
        zeros_ND = run(np.zeros((1, *x_BCT.shape[1:]), np.float32)) * 0
        z_BD = torch.from_numpy(zeros_ND).repeat(len(x_BCT), 1)
        if len(rows_N):
            z_BD[rows_N] = torch.from_numpy(run(x_BCT[rows_N].numpy()))
        return z_BD[:, :, None]


def joined(
    task: Task, state: Blobs, paths: Mapping[str, Path], version: int, base: str
) -> tuple[bytes, Parity]:
    """A version with its backbones as one ONNX model; equal versions and files give equal bytes.

    Args:
        task: of the version; prepared.
        state: of the version.
        paths: of the file of each backbone.
        version: its number, for the model's metadata.
        base: digest of its manifest, likewise.

    Raises:
        Misconfigured: the task has no backbone, or a file cannot be read.
        Refused: a file is not the task's, the parts cannot be joined, or what was joined computes something
            else; the detail says which.
    """
    head = inference_module(task, state)
    surface = surface_of(head, task)
    behind = [name for name in backbones(task) if name in surface.names]
    if not behind:
        raise Misconfigured(f"task {task.name!r}: the model has no backbone before it; leave it out")
    raw, runs = sensed(task), runs_of(task, paths)
    reference = _OneAfterAnother(head, surface, runs).eval()
    parts = {name: files.read(paths[name], backbones(task)[name].sha256) for name in behind}
    model = _joined(to_onnx(head, task), parts, task, surface, surface_of(reference, raw))
    digests = {name: backbones(task)[name].sha256 for name in behind}
    about = {"task": task.name, "version": version, "base": base, "labels": task.labels, "backbones": digests}
    for key, value in about.items():
        model.metadata_props.add(key=key, value=json.dumps(value, sort_keys=True))
    data: bytes = model.SerializeToString(deterministic=True)
    try:
        return data, check(data, reference, raw)
    except Refused as error:
        raise Refused(error.reason, _why_not(error.detail)) from None


def _why_not(detail: str) -> str:
    return (
        f"backbone and head cannot be joined: {detail}. A joined model takes many windows at once. A "
        "backbone cannot be in it if its result depends on the windows beside (as of one that quantizes by "
        "the range of a batch), or if it has a fixed number of windows inside"
    )


def _joined(
    head: bytes, parts: Mapping[str, bytes], task: Task, learned: Surface, surface: Surface
) -> onnx.ModelProto:
    """Backbones before a model."""
    models = {name: onnx.load_from_string(data) for name, data in parts.items()}
    last = onnx.load_from_string(head)
    opset = max(map(_opset, (last, *models.values())))
    ir = max(model.ir_version for model in (last, *models.values()))
    graph = _of_opset(last, opset, "the head").graph
    nodes, weights = [], []
    for m, name in enumerate(surface.names):
        if name not in models:
            continue
        backbone = backbones(task)[name]
        model = onnx.compose.add_prefix(
            _of_opset(models[name], opset, f"the backbone of {name}"), f"backbone/{name}/"
        )
        modality, dim = surface.modalities[m], learned.modalities[m].channels
        output = f"backbone/{name}/{backbone.output or models[name].graph.output[0].name}"
        body, kept = _needed(model.graph, output)
        before, constants = _before(modality, surface.samples[name], m, model)
        shape, features = f"after/{name}/shape", f"after/{name}/features"
        nodes += [*before, *body, helper.make_node("Reshape", [output, shape], [features])]
        weights += [*constants, *kept, _whole(shape, [-1, dim, 1])]
        for node in graph.node:
            for at, value in enumerate(node.input):
                if value == name:
                    node.input[at] = features
    given = {one.name: one for one in graph.input}
    inputs = [_raw(one, surface) if one.name in models else given[one.name] for one in surface.modalities]
    made = helper.make_graph(
        [*nodes, *graph.node],
        "joined",
        [given[PRESENT], *inputs],
        list(graph.output),
        [*weights, *graph.initializer],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    strip(model)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Refused(Reason.MALFORMED, f"backbone and head cannot be joined: {error}"[:500]) from None
    return model


def _opset(model: onnx.ModelProto) -> int:
    return max(int(one.version) for one in model.opset_import if one.domain in _DOMAINS)


def _of_opset(model: onnx.ModelProto, opset: int, what: str) -> onnx.ModelProto:
    """The model in a newer set of operators; its inputs are those that are fed."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    if (old := _opset(model)) == opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        raise Refused(
            Reason.MALFORMED,
            f"backbone and head cannot be joined: {what} has operators of ONNX's set {old}, the other of set "
            f"{opset}, and onnx cannot rewrite it: {error}"[:600],
        ) from None


def _needed(graph: onnx.GraphProto, output: str) -> tuple[list[Any], list[Any]]:
    """The nodes and weights that an output needs, in their order."""
    wanted, nodes = {output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            nodes.append(node)
            wanted.update(node.input)
    return nodes[::-1], [tensor for tensor in graph.initializer if tensor.name in wanted]


def _before(
    modality: Modality, samples: int, column: int, model: onnx.ModelProto
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Windows in their unit -> input of a backbone; of a missing one, which may be NaN, the offset."""
    inner = f"before/{modality.name}"
    (given,) = model.graph.input
    rank = len(given.type.tensor_type.shape.dim)
    layout = next(
        shape for shape in layouts(modality, samples) if len(shape) == rank - 1 and _fits(given, shape)
    )
    nodes = [
        helper.make_node(
            "Slice", [PRESENT, f"{inner}/from", f"{inner}/to", f"{inner}/axis"], [f"{inner}/mask"]
        ),
        helper.make_node("Greater", [f"{inner}/mask", f"{inner}/zero"], [f"{inner}/there"]),
        helper.make_node("Unsqueeze", [f"{inner}/there", f"{inner}/last"], [f"{inner}/there_B11"]),
        helper.make_node(
            "Where", [f"{inner}/there_B11", modality.name, f"{inner}/offset"], [f"{inner}/whole"]
        ),
        helper.make_node("Sub", [f"{inner}/whole", f"{inner}/offset"], [f"{inner}/moved"]),
        helper.make_node("Div", [f"{inner}/moved", f"{inner}/scale"], [f"{inner}/scaled"]),
        helper.make_node("Reshape", [f"{inner}/scaled", f"{inner}/layout"], [given.name]),
    ]
    weights = [
        _whole(f"{inner}/from", [column]),
        _whole(f"{inner}/to", [column + 1]),
        _whole(f"{inner}/axis", [1]),
        _whole(f"{inner}/last", [2]),
        _whole(f"{inner}/layout", [-1, *layout]),
        *(
            numpy_helper.from_array(np.asarray(value, np.float32), f"{inner}/{name}")
            for name, value in (("zero", 0.0), ("offset", modality.offset), ("scale", modality.scale))
        ),
    ]
    return nodes, weights


def _fits(given: onnx.ValueInfoProto, shape: Iterable[int]) -> bool:
    dims = given.type.tensor_type.shape.dim[1:]
    return all(
        not dim.HasField("dim_value") or dim.dim_value == size for dim, size in zip(dims, shape, strict=True)
    )


def _whole(name: str, values: list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _raw(modality: Modality, surface: Surface) -> onnx.ValueInfoProto:
    """The input of a modality with a backbone: windows in their unit."""
    shape: list[str | int | None] = ["batch", modality.channels, surface.samples[modality.name]]
    return helper.make_tensor_value_info(modality.name, TensorProto.FLOAT, shape)
