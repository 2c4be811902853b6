"""Files that may be backbones: an encoder of a version, or a foreign ONNX model in plain form.

Shapes: B windows, C channels, T samples or pixels, D features.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from export.onnx_graph import EXAMPLE_BATCH, OnnxLstm, serialized, strip, without_lstm
from export.parity.cases import BATCHES
from export.parity.gate import session
from models.backbones.graph_safety import require_safe_model
from models.contract import Blobs
from models.multimodal.network import build, load_blobs
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.task import Task

INPUT: Final = "windows"
OUTPUT: Final = "features"
TOLERANCE: Final = 1e-4
"""Maximum difference of a feature's element, relative to one plus the largest element of its batch."""
_RAW: Final = frozenset({onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED})


class _Encoder(nn.Module):
    """An encoder that returns one tensor of its own.

    Args:
        encoder: of a network.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        z_BD: Tensor = self.encoder(x_BCT)
        return z_BD


def encoder_file(task: Task, state: Blobs, modality: str) -> bytes:
    """The encoder of a modality as an ONNX file; windows have the task's ``offset`` and ``scale`` applied.

    Args:
        task: of the version.
        state: of the version.
        modality: whose encoder.

    Raises:
        Misconfigured: the version has no such encoder; the message names those that it has.
        Refused: the file differs from torch.
    """
    known = [name.removeprefix("encoder/") for name in state if name.startswith("encoder/")]
    if modality not in known or modality not in task.modality_names:
        raise Misconfigured(
            f"--modality {modality}: the version has no such encoder (it has {', '.join(known) or 'none'})"
        )
    if task.modality(modality).sensed is not None:
        raise Misconfigured(
            f"--modality {modality}: its encoder has a backbone before it; name that file instead"
        )
    net = build(task)
    load_blobs(net, state)
    module = _Encoder(without_lstm(net.encoders[modality], OnnxLstm)).eval()
    shape = task.modality(modality).channels, task.samples(modality)
    data = serialized(
        module,
        (torch.zeros(EXAMPLE_BATCH, *shape),),
        names=[INPUT],
        outputs=[OUTPUT],
        dynamic=({0: torch.export.Dim("batch")},),
    )
    _require_parity(data, net.encoders[modality].eval(), shape)
    return data


def _require_parity(data: bytes, encoder: nn.Module, shape: tuple[int, int]) -> None:
    loaded, rng = session(data), np.random.default_rng(0)
    for batch in BATCHES:
        x_BCT = rng.standard_normal((batch, *shape)).astype(np.float32)
        with torch.no_grad():
            want = encoder(torch.from_numpy(x_BCT)).numpy()
        (got,) = loaded.run([OUTPUT], {INPUT: x_BCT})
        gap = (
            float(np.abs(got - want).max() / (1 + np.abs(want).max())) if got.shape == want.shape else np.inf
        )
        if not gap <= TOLERANCE:
            raise Refused(
                Reason.OUT_OF_BOUNDS, f"backbone and torch differ by {gap:.1e} in a batch of {batch}"
            )


def plain_file(path: Path) -> bytes:
    """A model in the form that devices accept: weights inside, no functions, no descriptions.

    Raises:
        Misconfigured: it is no ONNX model, or its weights are not beside it.
        Refused: it has operators that are never accepted.
    """
    try:
        model = onnx.load(path)  # with weights in files beside it
    except Exception as error:  # onnx has no common base, and protobuf's own errors come through
        raise Misconfigured(
            f"{path}: no ONNX model that can be read: {type(error).__name__}: {error}"[:500]
        ) from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    _simplify(model)
    data: bytes = model.SerializeToString(deterministic=True)
    require_safe_model(data, path.name)
    return data


def _simplify(model: Any) -> None:
    """Remove what is no arithmetic, and write weights in one form. Operators stay."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [one for one in graph.input if one.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    strip(model)
    model.ClearField("domain")
    model.ClearField("model_version")
    del model.training_info[:]
    del graph.quantization_annotation[:]
    used = {node.domain or "" for node in graph.node}
    sets = [one for one in model.opset_import if one.domain in {"", "ai.onnx"} or one.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(sets)
    for tensor in graph.initializer:
        _in_one_form(tensor)
    for node in graph.node:
        node.ClearField("overload")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            if attribute.HasField("t"):
                _in_one_form(attribute.t)
    for value in (*graph.input, *graph.output):
        value.type.ClearField("denotation")
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("denotation")


def _in_one_form(tensor: Any) -> None:
    """Weights as raw bytes in the file."""
    if tensor.data_type not in _RAW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
