"""Encoder models: encoders as ONNX models with parameters as inputs, for devices without torch.

There is one model by modality, ``x_BCT -> feature_BD``. Weights and BatchNorm statistics are inputs, named
as the tensors of the encoder's blob, so the model depends on the task alone: it is exported once, has a few
KB, and a device feeds it the blobs of a round's base version. It includes the unit's offset and scale; the
feature is not normalised.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as _ort
from torch import Tensor, nn

from export.onnx_graph import EXAMPLE_BATCH, GATES, lstm_layer, require_plain, serialized, without_lstm
from export.parity.cases import BATCHES, Array
from export.parity.gate import session
from models.contract import Tensors
from models.multimodal.network import MultimodalNetwork, build, to_blobs
from protocol.errors import Reason, Refused
from protocol.tasks.task import Modality, Task

INPUT: Final = "x"
"""Name of the input; without a slash, so no tensor's wire name."""
OUTPUT: Final = "feature"
TOLERANCE: Final = 1e-4
"""Maximum difference of a feature's element, relative to one plus the largest element of its batch."""
_SEEDS: Final = (1, 2, 3)
_KINDS: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True)
class FeatureParity:
    """Measurements of the gate.

    Attributes:
        cases: pairs of a set of parameters and a batch size.
        max_difference: as :data:`TOLERANCE` measures it.
    """

    cases: int
    batches: tuple[int, ...]
    tolerance: float
    max_difference: float

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"batches": list(self.batches)}


class _OpenLstm(nn.Module):
    """An ``nn.LSTM`` whose parameters keep their names and are reordered to ONNX's gates in the model."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        require_plain(lstm)
        self.layers, self.hidden = lstm.num_layers, lstm.hidden_size
        for name, value in lstm.named_parameters():
            self.register_parameter(name, value)

    def _ordered(self, name: str) -> Tensor:
        parameter: Tensor = getattr(
            self, name
        )  # get_parameter() insists on a Parameter, and a tensor was put there
        parts = parameter.chunk(4, dim=0)
        return torch.cat([parts[i] for i in GATES], dim=0).unsqueeze(0)

    def forward(self, x_BTI: Tensor) -> tuple[Tensor, None]:
        """``h_BTH`` of all time steps; without the final state."""
        x_TBI = x_BTI.transpose(0, 1)
        for i in range(self.layers):
            w, r, wb, rb = (self._ordered(f"{kind}_l{i}") for kind in _KINDS)
            x_TBI = lstm_layer(x_TBI, w, r, torch.cat([wb, rb], dim=1), self.hidden)
        return x_TBI.transpose(0, 1), None


class _Open(nn.Module):
    """An encoder that takes its tensors as arguments, in the order of ``paths``."""

    def __init__(self, encoder: nn.Module, paths: tuple[str, ...], offset: float, scale: float) -> None:
        super().__init__()
        # In a list, so that the encoder's own parameters become no part of this module and its ONNX model.
        self._encoder = [without_lstm(encoder, _OpenLstm)]
        self._paths, self._offset, self._scale = paths, offset, scale

    def forward(self, x_BCT: Tensor, *tensors: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        values = dict(zip(self._paths, tensors, strict=True))
        scaled_BCT = (x_BCT - self._offset) / self._scale
        z_BD: Tensor = torch.func.functional_call(self._encoder[0], values, (scaled_BCT,))
        return z_BD


def _blob(net: MultimodalNetwork, name: str) -> Tensors:
    return to_blobs(net).get(f"encoder/{name}", {})


def _graph(net: MultimodalNetwork, modality: Modality, samples: int) -> bytes:
    """One modality's ONNX model."""
    tensors = _blob(net, modality.name)
    paths = tuple(name.rsplit("/", 1)[1] for name in tensors)
    encoder = net.encoders[modality.name]
    x_BCT = torch.zeros(EXAMPLE_BATCH, modality.channels, samples)
    return serialized(
        _Open(encoder, paths, modality.offset, modality.scale).eval(),
        (x_BCT, *map(torch.from_numpy, tensors.values())),
        names=[INPUT, *tensors],
        outputs=[OUTPUT],
        dynamic=({0: torch.export.Dim("batch")}, *([tuple({} for _ in tensors)] if tensors else [])),
    )


def _like_trained(task: Task, seed: int) -> MultimodalNetwork:
    """A network whose tensors all differ from other seeds and from torch's initial values."""
    net = build(task)
    rng = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.5, 0.5),
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.3, 3.0),
            ):
                if tensor is not None:
                    tensor.data = low + (high - low) * torch.rand(tensor.shape, generator=rng)
    return net.eval()


def _windows(modality: Modality, samples: int, batch: int, seed: int) -> Array:
    """Windows in raw units, with the task's offset and scale of the sensor."""
    x = np.random.default_rng((seed, batch)).standard_normal((batch, modality.channels, samples))
    return (modality.offset + modality.scale * x).astype(np.float32)


def _run(loaded: ort.InferenceSession, feeds: Tensors, where: str) -> Array:
    try:
        (z_BD,) = loaded.run([OUTPUT], feeds)
    except (_ort.InvalidArgument, _ort.Fail, _ort.RuntimeException) as error:
        raise Refused(Reason.WRONG_TENSORS, f"the encoder model does not run at {where}: {error}") from None
    return np.asarray(z_BD, np.float32)


def check(graph: bytes, task: Task, modality: Modality) -> FeatureParity:
    """Compare an encoder model with torch for several networks, which shows frozen parameters.

    Raises:
        Refused: it does not load or run, or differs; the detail names modality, network and batch size.
    """
    loaded, gaps = session(graph), []
    for seed in _SEEDS:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            net = _like_trained(task, seed)
            tensors = _blob(net, modality.name)
            for batch in BATCHES:
                where = f"{modality.name}, network {seed}, batch {batch}"
                x_BCT = _windows(modality, task.samples(modality.name), batch, seed)
                want = net.encode(modality.name, torch.from_numpy(x_BCT)).numpy()
                gaps.append(_gap(_run(loaded, {INPUT: x_BCT, **tensors}, where), want, where))
    return FeatureParity(len(gaps), BATCHES, TOLERANCE, max(gaps))


def _gap(got: Array, want: Array, where: str) -> float:
    if got.shape != want.shape:
        raise Refused(Reason.WRONG_TENSORS, f"at {where} the feature is {got.shape}, in torch {want.shape}")
    gap = float(np.abs(got - want).max() / (1 + np.abs(want).max()))
    if not gap <= TOLERANCE:  # also refuses NaN
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"encoder model and torch differ at {where} by {gap:.2e} (at most {TOLERANCE:.0e})",
        )
    return gap


def checked_encoder_models(task: Task) -> dict[str, tuple[bytes, FeatureParity]]:
    """:func:`make_encoder_models`, with the measurements of each gate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build(task).eval()
        models = {m.name: _graph(net, m, task.samples(m.name)) for m in task.modalities}
    return {m.name: (models[m.name], check(models[m.name], task, m)) for m in task.modalities}


def make_encoder_models(task: Task) -> dict[str, bytes]:
    """One serialized ONNX model by modality; equal tasks give equal bytes.

    Inputs: ``x``, float32 ``(batch, C, T)`` in the modality's unit, and every tensor of the blob
    ``encoder/<modality>`` under its own name and shape. Output: ``feature``, float32 ``(batch, D)``.

    Raises:
        Refused: an ONNX model differs from torch.
    """
    return {name: graph for name, (graph, _) in checked_encoder_models(task).items()}
