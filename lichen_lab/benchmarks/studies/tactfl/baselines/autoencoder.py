"""Devices that learn to reconstruct their windows, each modality by itself (FedIoT). Imports torch."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from lichen_lab.benchmarks.studies.tactfl.baselines.loop import Trained
from lichen_lab.benchmarks.studies.tactfl.settings import TactflSetting, UnlabelledDevice
from models.contract import Blobs, Tensors
from models.methods.tactfl.coordinator_training.finetune import remeasured
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.seeds import derive_seed
from models.training import local
from protocol.tasks.task import Task

_FEWEST: Final = 2


class AutoencoderReconstruction:
    """See ``loop.Local``; parts ``decoder/<modality>`` are added.

    Args:
        task: the network.
        setting: training of the devices.
        options: ``decoder_dim``, units of a decoder's hidden layer.
        seed: of decoders and of the order of windows.
    """

    def __init__(self, task: Task, setting: TactflSetting, options: Mapping[str, float], seed: int) -> None:
        self._task, self._setting, self._seed = task, setting, seed
        self._hidden = int(options["decoder_dim"])

    def begin(self, state: Blobs) -> Blobs:
        """Add fresh decoders."""
        local.start_deterministic(derive_seed(self._seed, "decoders"))
        made = {f"decoder/{name}": _tensors(name, self._decoder(name)) for name in self._task.modality_names}
        return state | made

    def _decoder(self, name: str) -> nn.Sequential:
        modality = self._task.modality(name)
        values = modality.channels * self._task.samples(name)
        dim = self._task.network.feature_dim
        return nn.Sequential(nn.Linear(dim, self._hidden), nn.ReLU(), nn.Linear(self._hidden, values))

    def train(self, member: UnlabelledDevice, state: Blobs, round_: int) -> Trained | None:
        """All epochs, encoder and decoder of every modality that the device has."""
        order = local.start_deterministic(derive_seed(self._seed, member.name, round_))
        net = build(self._task)
        load_blobs(net, state)
        made: Blobs = {}
        weight = 0
        for m, name in enumerate(net.names):
            x_BCT = torch.from_numpy(member.windows.x[name][member.windows.present_BM[:, m]])
            if len(x_BCT) >= _FEWEST:
                made[f"decoder/{name}"] = self._descend(net, name, x_BCT, state, order)
                made[f"encoder/{name}"] = to_blobs(net)[f"encoder/{name}"]
                weight = max(weight, len(x_BCT))
        return (float(weight), made) if made else None

    def error(self, member: UnlabelledDevice, state: Blobs) -> dict[str, float]:
        """By modality, the mean squared error of a device's reconstructed windows, in units of ``scale``."""
        net = build(self._task)
        load_blobs(net, state)
        net.eval()
        errors = {}
        for m, name in enumerate(net.names):
            decoder = self._decoder(name)
            _load(name, decoder, state[f"decoder/{name}"])
            x_BCT = torch.from_numpy(member.windows.x[name][member.windows.present_BM[:, m]])
            with torch.no_grad():
                errors[name] = float(_error(net, name, decoder, x_BCT))
        return errors

    def _descend(
        self, net: MultimodalNetwork, name: str, x_BCT: Tensor, state: Blobs, order: torch.Generator
    ) -> Tensors:
        decoder, encoder = self._decoder(name), net.encoders[name]
        _load(name, decoder, state[f"decoder/{name}"])
        adam = local.Adam([*encoder.parameters(), *decoder.parameters()], self._setting.lr)
        encoder.train()
        for _ in range(self._setting.epochs):
            for index_B in local.batches(len(x_BCT), self._setting.batch, order):
                adam.descend(_error(net, name, decoder, x_BCT[index_B]))
        remeasured(net, name, x_BCT)
        return _tensors(name, decoder)


def _error(net: MultimodalNetwork, name: str, decoder: nn.Module, x_BCT: Tensor) -> Tensor:
    """Mean squared error of reconstructed values, in the encoder's units."""
    offset, scale = net.affine[name]
    wanted_BN = ((x_BCT - offset) / scale).flatten(start_dim=1)
    error: Tensor = (decoder(net.encode(name, x_BCT)) - wanted_BN).square().mean()
    return error


def _tensors(name: str, decoder: nn.Module) -> Tensors:
    return {
        f"decoder/{name}/{path}": tensor.detach().numpy().copy()
        for path, tensor in decoder.state_dict().items()
    }


def _load(name: str, decoder: nn.Module, tensors: Tensors) -> None:
    with torch.no_grad():
        for path, tensor in decoder.state_dict().items():
            tensor.copy_(torch.from_numpy(tensors[f"decoder/{name}/{path}"]))
