"""An inference module as an ONNX model.

The exporter is torch's own (``torch.export`` and onnxscript), with one help: an ``nn.LSTM`` is handed over as
the ONNX operator it becomes (ADR 4). The batch is a free axis. The time axes are free where the module says
that it takes windows of any length (``any_length``, ADR 26), and have the task's length elsewhere.
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

from export.overridable_inputs import Open, Paths, values_of, with_defaults
from export.signature import Surface, surface_of
from models.contract import Tensors
from protocol.tasks.task import Task

OPSET: Final = 20
"""Runs on every onnxruntime since 1.17, and has all that these ONNX models need."""
EXAMPLE_BATCH: Final = 3
"""Neither 0 nor 1: torch.export takes those for constants of the ONNX model."""
GATES: Final = (0, 3, 1, 2)
"""torch stacks an LSTM's gates as i, f, g, o; ONNX as i, o, f, c (g is called c there)."""


def _gates(w_4HN: Tensor) -> Tensor:
    """Rows in ONNX's gate order, with a first axis for its one direction."""
    parts = w_4HN.detach().chunk(4, dim=0)
    return torch.cat([parts[i] for i in GATES], dim=0).unsqueeze(0).contiguous()


def require_plain(lstm: nn.LSTM) -> None:
    """Raises ValueError for an LSTM that the ONNX operator below would not compute."""
    if not lstm.batch_first or lstm.bidirectional or lstm.proj_size or not lstm.bias:
        raise ValueError(f"cannot export {lstm}: only batch_first, one direction, biases, no projection")


def lstm_layer(x_TBI: Tensor, w_14HI: Tensor, r_14HH: Tensor, b_18H: Tensor, hidden: int) -> Tensor:
    """One layer as the ONNX operator, parameters in its gate order: ``h_TBH``. Only to be traced."""
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
    """Takes the place of an ``nn.LSTM`` while exporting; computes nothing in torch."""

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
        """``h_BTH`` of all time steps; the final state is not offered."""
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
    """Hold back what torch's exporter says about itself, and nothing else."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it misses torchvision, which nothing here uses
    try:
        with warnings.catch_warnings():
            # torch deep-copies its own program and meets a deprecation of its own.
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


def serialized(
    model: nn.Module,
    arguments: tuple[Tensor, ...],
    *,
    names: Sequence[str],
    outputs: Sequence[str],
    dynamic: tuple[Any, ...],
    defaults: Tensors | None = None,
) -> bytes:
    """A module as a serialized model, checked by onnx; the same module gives the same bytes.

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
    proto = program.model_proto
    with_defaults(proto, defaults or {})
    strip(proto)
    onnx.checker.check_model(proto, full_check=True)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def to_onnx(model: nn.Module, task: Task, own: Paths | None = None) -> bytes:
    """Export an inference module; the same module gives the same bytes.

    Args:
        model: ``forward(present_BM, *x_BCT)``, a tuple of tensors in the order of ``protocol.output_names``;
        it
            says itself what it reads and predicts (``export.signature``). Not changed.
        task: fixes shapes and units.
        own: the tensors that a device may replace (``export.overridable_inputs.paths_of``); the others are
        constants.

    Returns:
        A serialized ONNX model, checked by onnx. Whether it computes the same is for ``export.parity.gate``.
    """
    surface = surface_of(model, task)
    arguments, names = _example(surface, EXAMPLE_BATCH), surface.inputs
    batch, auto = torch.export.Dim("batch"), torch.export.Dim.AUTO
    # AUTO: torch.export takes a named time axis for fixed at the first pooling, which it is not. Should AUTO
    # ever freeze one, the gate meets windows of another length, and refuses.
    window = {0: auto, 2: auto} if surface.any_length else {0: auto}
    windows = tuple(dict(window) for _ in surface.modalities)
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
