"""An inference module as an ONNX model.

The exporter is torch's own (``torch.export`` and onnxscript), with one help: an ``nn.LSTM`` is handed over as
the ONNX operator it becomes (ADR 4). The batch is the only dynamic axis: the time axis has the task's length.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import onnx
import torch
from torch import Tensor, nn

from protocol.task import Task

OPSET: Final = 20
"""Runs on every onnxruntime since 1.17, and has all that these graphs need."""
PRESENT: Final = "present"
OUTPUTS: Final = ("probabilities", "logits")
_EXAMPLE_BATCH: Final = 3
"""Neither 0 nor 1: torch.export takes those for constants of the graph."""
_GATES: Final = (0, 3, 1, 2)
"""torch stacks an LSTM's gates as i, f, g, o; ONNX as i, o, f, c (g is called c there)."""


def _gates(w_4HN: Tensor) -> Tensor:
    """Rows in ONNX's gate order, with a first axis for its one direction."""
    parts = w_4HN.detach().chunk(4, dim=0)
    return torch.cat([parts[i] for i in _GATES], dim=0).unsqueeze(0).contiguous()


class _OnnxLstm(nn.Module):
    """Takes the place of an ``nn.LSTM`` while exporting; computes nothing in torch."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        if not lstm.batch_first or lstm.bidirectional or lstm.proj_size or not lstm.bias:
            raise ValueError(f"cannot export {lstm}: only batch_first, one direction, biases, no projection")
        self.layers, self.hidden = lstm.num_layers, lstm.hidden_size
        for i in range(self.layers):
            w, r, wb, rb = (
                getattr(lstm, f"{kind}_l{i}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            self.register_buffer(f"w{i}", _gates(w))
            self.register_buffer(f"r{i}", _gates(r))
            self.register_buffer(f"b{i}", torch.cat([_gates(wb), _gates(rb)], dim=1))

    def forward(self, x_BTI: Tensor) -> tuple[Tensor, None]:
        """``h_BTH`` of all time steps; the final state is not offered."""
        x_TBI = x_BTI.transpose(0, 1)
        for i in range(self.layers):
            y_T1BH = torch.onnx.ops.symbolic(
                "LSTM",
                (x_TBI, *(self.get_buffer(f"{name}{i}") for name in "wrb")),
                {"hidden_size": self.hidden},
                dtype=torch.float32,
                shape=(x_TBI.shape[0], 1, x_TBI.shape[1], self.hidden),
                version=OPSET,
            )
            x_TBI = y_T1BH.squeeze(1)
        return x_TBI.transpose(0, 1), None


def _prepared(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, with every LSTM replaced."""
    model = copy.deepcopy(model).eval()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.LSTM):
                setattr(parent, name, _OnnxLstm(child))
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what torch's exporter says about itself, and nothing else."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it misses torchvision, which nothing here uses
    try:
        with warnings.catch_warnings():
            # torch deep-copies its own graph and meets a deprecation of its own.
            warnings.filterwarnings(
                "ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning
            )
            yield
    finally:
        logger.setLevel(level)


def example(task: Task, batch: int) -> tuple[Tensor, ...]:
    """``present_BM`` and one ``x_BCT`` for each modality: the arguments of an inference module."""
    x = [torch.zeros(batch, m.channels, task.samples(m.name)) for m in task.modalities]
    return torch.ones(batch, len(x)), *x


def _strip(model: onnx.ModelProto) -> None:
    """Remove what describes the machine and the source code: it would change bytes from place to place."""
    model.producer_name, model.producer_version, model.doc_string = "lichen", "", ""
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        part.doc_string = ""
        del part.metadata_props[:]
    # Shapes of inner values: onnxruntime infers them again.
    del graph.value_info[:]


def to_onnx(model: nn.Module, task: Task) -> bytes:
    """Export an inference module; the same module gives the same bytes.

    Args:
        model: ``forward(present_BM, *x_BCT) -> (probabilities_BK, logits_BK)``; not changed.
        task: names the inputs and fixes their shapes.

    Returns:
        A serialized ONNX model, checked by onnx. Whether it computes the same is for ``export.parity``.
    """
    arguments = example(task, _EXAMPLE_BATCH)
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _prepared(model),
            arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=[PRESENT, *task.modality_names],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: batch}, tuple({0: torch.export.Dim.AUTO} for _ in task.modalities)),
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    proto = program.model_proto
    _strip(proto)
    onnx.checker.check_model(proto, full_check=True)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data
