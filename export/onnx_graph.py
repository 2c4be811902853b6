"""An inference module as an ONNX model.

Uses torch's exporter (``torch.export`` and onnxscript), but replaces an ``nn.LSTM`` by the ONNX operator
before (ADR 4). The batch axis is dynamic. A time axis is dynamic if the module takes windows of any length of
that modality (``any_length``, ADR 26), and fixed to the task's length otherwise.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import onnx
import torch
from torch import Tensor, nn

from export.computed_constants import compute_tables
from export.overridable_inputs import Open, Paths, values_of, with_defaults
from export.signature import Surface, surface_of
from models.contract import Tensors
from protocol.tasks.task import Task

OPSET: Final = 20
"""Supported by onnxruntime since 1.17, with all operators that the models need."""
EXAMPLE_BATCH: Final = 3
"""Neither 0 nor 1, which torch.export treats as constants."""
GATES: Final = (0, 3, 1, 2)
"""torch stacks an LSTM's gates as i, f, g, o; ONNX as i, o, f, c (g is called c there)."""


def _gates(w_4HN: Tensor) -> Tensor:
    """Rows in ONNX's gate order, with a first axis of one direction."""
    parts = w_4HN.detach().chunk(4, dim=0)
    return torch.cat([parts[i] for i in GATES], dim=0).unsqueeze(0).contiguous()


def require_plain(lstm: nn.LSTM) -> None:
    """Raises ValueError for an LSTM that differs from the ONNX operator below."""
    if not lstm.batch_first or lstm.bidirectional or lstm.proj_size or not lstm.bias:
        raise ValueError(f"cannot export {lstm}: only batch_first, one direction, biases, no projection")


def lstm_layer(x_TBI: Tensor, w_14HI: Tensor, r_14HH: Tensor, b_18H: Tensor, hidden: int) -> Tensor:
    """One layer as the ONNX operator, parameters in its gate order: ``h_TBH``. For tracing only."""
    y_T1BH = torch.onnx.ops.symbolic(
        "LSTM",
        (x_TBI, w_14HI, r_14HH, b_18H),
        {"hidden_size": hidden},
        dtype=torch.float32,
        shape=(x_TBI.shape[0], 1, x_TBI.shape[1], hidden),
        version=OPSET,
    )
    return y_T1BH.squeeze(1)


class OnnxLstm(nn.Module):
    """Replaces an ``nn.LSTM`` in the export; computes nothing in torch."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        require_plain(lstm)
        self.layers, self.hidden = lstm.num_layers, lstm.hidden_size
        for i in range(self.layers):
            w, r, wb, rb = (
                getattr(lstm, f"{kind}_l{i}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            self.register_buffer(f"w{i}", _gates(w))
            self.register_buffer(f"r{i}", _gates(r))
            self.register_buffer(f"b{i}", torch.cat([_gates(wb), _gates(rb)], dim=1))

    def forward(self, x_BTI: Tensor) -> tuple[Tensor, None]:
        """``h_BTH`` of all time steps; without the final state."""
        x_TBI = x_BTI.transpose(0, 1)
        for i in range(self.layers):
            w, r, b = (self.get_buffer(f"{name}{i}") for name in "wrb")
            x_TBI = lstm_layer(x_TBI, w, r, b, self.hidden)
        return x_TBI.transpose(0, 1), None


def without_lstm(model: nn.Module, replace: Callable[[nn.LSTM], nn.Module]) -> nn.Module:
    """A copy in evaluation mode, with every LSTM replaced."""
    model = copy.deepcopy(model).eval()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.LSTM):
                setattr(parent, name, replace(child))
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of torch's exporter about itself, and no others."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of torchvision, which is not used
    try:
        with warnings.catch_warnings():
            # torch deep-copies its program and triggers a deprecation in torch.
            warnings.filterwarnings(
                "ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning
            )
            yield
    finally:
        logger.setLevel(level)


def _example(surface: Surface, batch: int) -> tuple[Tensor, ...]:
    """``present_BM`` and one ``x_BCT`` for each modality: the arguments of an inference module."""
    x = [torch.zeros(batch, m.channels, surface.samples[m.name]) for m in surface.modalities]
    return torch.ones(batch, len(x)), *x


def strip(model: onnx.ModelProto) -> None:
    """Remove descriptions of the machine and the source code, which would change the bytes."""
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
    # Shapes of inner values, which onnxruntime infers.
    del graph.value_info[:]


def _rename_inner(graph: Any, taken: set[str]) -> None:
    """Rename inner values that torch named after an operation and that are called as an input or output is.

    A modality may be called ``log`` or ``mean``.
    """
    for node in graph:
        for value in node.outputs:
            if value.name in taken and not value.is_graph_output():
                value.name = f"inner/{value.name}"


def serialized(
    model: nn.Module,
    arguments: tuple[Tensor, ...],
    *,
    names: Sequence[str],
    outputs: Sequence[str],
    dynamic: tuple[Any, ...],
    defaults: Tensors | None = None,
) -> bytes:
    """A module as a serialized model, checked by onnx; equal modules give equal bytes.

    Args:
        model: in evaluation mode, and :func:`without_lstm`.
        arguments: of one call.
        names: of the ONNX model's inputs, one for each argument.
        outputs: of the ONNX model's outputs.
        dynamic: torch.export's ``dynamic_shapes``.
        defaults: of inputs that need not be fed (``export.overridable_inputs``).
    """
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(names),
            output_names=list(outputs),
            dynamic_shapes=dynamic,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program")
    _rename_inner(program.model.graph, {*names, *outputs})
    proto = program.model_proto
    compute_tables(proto)
    with_defaults(proto, defaults or {})
    strip(proto)
    onnx.checker.check_model(proto, full_check=True)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def to_onnx(model: nn.Module, task: Task, own: Paths | None = None) -> bytes:
    """Export an inference module; the same module gives the same bytes.

    Args:
        model: ``forward(present_BM, *x_BCT)``, a tuple of tensors in the order of ``protocol.output_names``;
            its attributes describe inputs and targets (``export.signature``). Not changed.
        task: fixes shapes and units.
        own: the tensors that a device may replace (``export.overridable_inputs.paths_of``); the others are
            constants.

    Returns:
        A serialized ONNX model, checked by onnx. ``export.parity.gate`` compares it with torch.
    """
    surface = surface_of(model, task)
    arguments, names = _example(surface, EXAMPLE_BATCH), surface.inputs
    batch, auto = torch.export.Dim("batch"), torch.export.Dim.AUTO
    # AUTO: torch.export wrongly fixes a named time axis at the first pooling. If AUTO ever fixes one, the
    # gate refuses, because it tests other lengths.
    windows = tuple({0: auto, 2: auto} if name in surface.any_length else {0: auto} for name in surface.names)
    closed = without_lstm(model, OnnxLstm)
    if not own:
        dynamic: tuple[Any, ...] = ({0: batch}, windows)
        return serialized(closed, arguments, names=names, outputs=surface.outputs, dynamic=dynamic)
    defaults = values_of(model, own)
    return serialized(
        Open(closed, own, len(windows)).eval(),
        (*arguments, *map(torch.from_numpy, defaults.values())),
        names=[*names, *defaults],
        outputs=surface.outputs,
        dynamic=(({0: batch}, *windows, *({} for _ in defaults)),),
        defaults=defaults,
    )
