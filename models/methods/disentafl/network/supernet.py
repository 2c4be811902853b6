"""The supernet by its parts, and the sub-network of one route. Imports torch.

A part is the module of one blob; a :class:`Subnet` is made of the parts of a route and nothing else, on a
device, for evaluation and for export alike. Parameters' wire names are their blob's name and path in it.

Shapes: B windows, M modalities of the route and, last, the shared one; O its targets and, last, the shared
one; C channels, T samples, D features, H = D / 2, F latent, K classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.contract import Blobs, FloatArray, Profile, Tensors
from models.methods.disentafl import SHARED, DisentAflConfig
from models.methods.disentafl.network.attention import AttentionEncoder, Domain
from models.methods.disentafl.routing.blob_names import (
    config_of,
    domains_of,
    pairs,
    parts,
    profile_of,
)
from models.tensors import flatten
from protocol.errors import Reason, Refused
from protocol.tasks.task import Target, Task


class Expert(nn.Module):
    """One knowledge type, the blob ``expert/<m>.<o>``: MoTE's expert into Z, MoME's out of it."""

    def __init__(self, config: DisentAflConfig, holds: Iterable[str]) -> None:
        super().__init__()
        half = config.width // 2
        if "mote" in holds:
            self.mote = _linear(half, config.latent)
        if "mome" in holds:
            self.mome = _linear(config.latent, half)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that begins by keeping the size of what it is given: two of them lie behind every decoder."""
    made = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(made.weight)
    nn.init.zeros_(made.bias)
    return made


class Decoder(nn.Module):
    """The layers of a target's decoder but the last, the blob ``decoder/<o>``."""

    def __init__(self, target: Target, config: DisentAflConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.fc = nn.Linear(config.width, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.hidden) if target.kind == "generation" else None

    def forward(self, t_BD: Tensor) -> Tensor:
        """What the last layer reads, from ``[t_share | t_o]``."""
        made = functional.gelu(self.fc(self.norm(t_BD)))
        return made if self.fc2 is None else functional.gelu(self.fc2(made))


class Last(nn.Module):
    """The last layer of a target's decoder, the blob ``last/<o>``: K scores, one number, or a window."""

    def __init__(self, target: Target, task: Task, config: DisentAflConfig) -> None:
        super().__init__()
        self.shape = shape_of(target, task)
        self.fc = nn.Linear(config.hidden, int(np.prod(self.shape)))

    def forward(self, hidden: Tensor) -> Tensor:
        """``(B, K)``, ``(B, 1)`` or ``(B, C, T)``, normalised."""
        made: Tensor = self.fc(hidden)
        return made.reshape(-1, *self.shape)


def shape_of(target: Target, task: Task) -> tuple[int, ...]:
    """Of one window's prediction: ``(K,)``, ``(1,)`` or ``(C, T)``."""
    if target.modality is not None:
        return task.modality(target.modality).channels, task.samples(target.modality)
    return (max(1, len(target.labels)),)


def part(task: Task, config: DisentAflConfig, blob: str) -> nn.Module:
    """The module of a blob, with fresh parameters from torch's global random generator.

    Raises:
        KeyError: there is no such part.
    """
    kind, _, rest = blob.partition("/")
    first, _, second = rest.partition(".")
    if kind == "base":
        encoder = task.encoder(rest)
        bands = encoder.bands if encoder.kind == "mel" else None
        return AttentionEncoder(task.modality(rest), task.samples(rest), config, bands)
    if kind == "domain":
        return Domain(config)
    if kind == "expert":
        return Expert(config, parts(config, first, second))
    if kind == "decoder":
        return Decoder(task.target(rest), config)
    if kind == "last":
        return Last(task.target(rest), task, config)
    raise KeyError(f"blob {blob!r} is no part of the network")


@dataclass(frozen=True)
class SupernetView:
    """What a sub-network makes of windows.

    Attributes:
        share_BMH: ``h_share`` of each modality (without the shared one: that is their mean).
        z_BMOF: Z; with ``families`` lacking ``mote`` the same for all targets.
        there_BM: bool, which modalities the window has; last, whether it has any.
        made: by target, its normalised prediction: zeros where a window has no modality.
    """

    share_BMH: Tensor
    z_BMOF: Tensor
    there_BM: Tensor
    made: dict[str, Tensor]


class Subnet(nn.Module):
    """The network of one route, in normalised units.

    Args:
        task: names, shapes and options.
        profile: what it reads and predicts.
        domain: whose MoDE experts it has; None: nobody's.

    Attributes:
        modalities: that it reads, in the task's order.
        targets: that it predicts, in the task's order.
        blobs: those it is made of, and the path of each one's module.
    """

    def __init__(self, task: Task, profile: Profile, domain: int | None) -> None:
        super().__init__()
        config = config_of(task)
        self.families = config.families
        self.modalities = tuple(m for m in task.input_names if m in profile.modalities)
        self.targets = tuple(o for o in task.objectives if o.name in profile.targets)
        self.affine = [(task.modality(m).offset, task.modality(m).scale) for m in self.modalities]
        own = Profile(self.modalities, tuple(o.name for o in self.targets))
        groups = {
            "encoders": [f"base/{m}" for m in own.modalities],
            "domains": [] if domain is None else [f"domain/{m}.{domain}" for m in own.modalities],
            "experts": [f"expert/{m}.{o}" for m, o in pairs(own) if parts(config, m, o)],
            "decoders": [f"decoder/{o}" for o in own.targets],
            "lasts": [f"last/{o}" for o in own.targets],
        }
        made = {g: nn.ModuleList(part(task, config, blob) for blob in blobs) for g, blobs in groups.items()}
        self.encoders, self.domains, self.experts = made["encoders"], made["domains"], made["experts"]
        self.decoders, self.lasts = made["decoders"], made["lasts"]
        self.blobs = {blob: f"{g}.{i}" for g, blobs in groups.items() for i, blob in enumerate(blobs)}
        at = {blob.partition("/")[2]: i for i, blob in enumerate(groups["experts"])}
        rows, columns = (*own.modalities, SHARED), (*own.targets, SHARED)
        mote, mome = "mote" in config.families, "mome" in config.families
        self._mote = [at[f"{m}.{o if mote else SHARED}"] for m in rows for o in columns]
        self._mome = [at[f"{m if mome else SHARED}.{o}"] for o in columns for m in rows]
        self._wire = {
            f"{blob}/{name}": f"{path}.{name}"
            for blob, path in self.blobs.items()
            for name, _ in self.get_submodule(path).named_parameters()
        }

    def wire(self) -> dict[str, str]:
        """By wire name, the path of each parameter."""
        return dict(self._wire)

    def load(self, tensors: Mapping[str, FloatArray]) -> None:
        """Copy values by wire name; names that are not this network's are passed over.

        Raises:
            Refused: a tensor is not there or has another shape.
        """
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, path in self._wire.items():
                value, shape = tensors.get(name), tuple(own[path].shape)
                if value is None or value.shape != shape:
                    got = "nothing" if value is None else f"shape {value.shape}"
                    raise Refused(Reason.WRONG_TENSORS, f"tensor {name!r} has shape {shape}, got {got}")
                own[path].copy_(torch.from_numpy(value))

    def tensors(self) -> Tensors:
        """A copy of all parameters, by wire name."""
        own = dict(self.named_parameters())
        return {name: own[path].detach().numpy().copy() for name, path in self._wire.items()}

    def forward(self, present_BM: Tensor, *x: Tensor) -> SupernetView:
        """What the network makes of windows.

        Args:
            present_BM: bool, columns in the order of :attr:`modalities`.
            *x: one ``x_BCT`` for each of them, in its raw unit; what a missing one holds does not matter.
        """
        h_BMD = torch.stack([self._encoded(m, present_BM[:, m], x_BCT) for m, x_BCT in enumerate(x)], dim=1)
        share_BMH, own_BMH = h_BMD.chunk(2, dim=2)
        here_BM1 = present_BM.unsqueeze(2).to(h_BMD.dtype)
        mean_BH = (share_BMH * here_BM1).sum(dim=1) / here_BM1.sum(dim=1).clamp(min=1)
        there_BM = torch.cat([present_BM, present_BM.any(dim=1, keepdim=True)], dim=1)
        z_BMOF = self._into_z(torch.cat([own_BMH, mean_BH.unsqueeze(1)], dim=1))
        t_BOH = self._out_of_z(z_BMOF, there_BM)
        return SupernetView(share_BMH, z_BMOF, there_BM, self._decoded(t_BOH, there_BM[:, -1]))

    def types(self, seen: SupernetView) -> tuple[Tensor, Tensor]:
        """The knowledge types in Z, ``z_BQF``, and whether a window has each, ``there_BQ``.

        In the order of ``names.pairs``. Without MoTE those of a modality are one, which the shared target
        stands for.
        """
        z_BMOF = seen.z_BMOF if "mote" in self.families else seen.z_BMOF[:, :, -1:]
        there_BMO = seen.there_BM.unsqueeze(2).expand(z_BMOF.shape[:3])
        return z_BMOF.flatten(1, 2), there_BMO.flatten(1)

    def _encoded(self, m: int, here_B: Tensor, x_BCT: Tensor) -> Tensor:
        offset, scale = self.affine[m]
        # replaced before anything is computed: NaN times zero would still be NaN
        clean_BCT = torch.where(here_B[:, None, None], (x_BCT - offset) / scale, 0.0)
        h_BD: Tensor = self.encoders[m](clean_BCT, self.domains[m] if len(self.domains) else None)
        return h_BD

    def _into_z(self, h_BMH: Tensor) -> Tensor:
        """All of MoTE in one product."""
        batch, modalities, half = h_BMH.shape
        motes = [cast("nn.Linear", self.experts[i].mote) for i in self._mote]
        weight_MXH = torch.stack([mote.weight for mote in motes]).reshape(modalities, -1, half)
        bias_M1X = torch.stack([mote.bias for mote in motes]).reshape(modalities, 1, -1)
        z_MBX = torch.baddbmm(bias_M1X, h_BMH.transpose(0, 1), weight_MXH.transpose(1, 2))
        return z_MBX.reshape(modalities, batch, len(self.targets) + 1, motes[0].out_features).transpose(0, 1)

    def _out_of_z(self, z_BMOF: Tensor, there_BM: Tensor) -> Tensor:
        """All of MoME in one product, which also is the sum over modalities: ``t_BOH``."""
        modalities, columns, latent = z_BMOF.shape[1:]
        momes = [cast("nn.Linear", self.experts[i].mome) for i in self._mome]
        half = momes[0].weight.shape[0]
        weight_OMHF = torch.stack([mome.weight for mome in momes]).reshape(columns, modalities, half, latent)
        bias_OMH = torch.stack([mome.bias for mome in momes]).reshape(columns, modalities, half)
        here_BM = there_BM.to(z_BMOF.dtype)
        active_BMOF = functional.gelu(z_BMOF) * here_BM[:, :, None, None]
        t_OBH = torch.bmm(
            active_BMOF.permute(2, 0, 1, 3).flatten(2), weight_OMHF.transpose(2, 3).flatten(1, 2)
        )
        bias_BOH = (here_BM @ bias_OMH.transpose(0, 1).flatten(1)).reshape(-1, columns, half)
        return t_OBH.transpose(0, 1) + bias_BOH

    def _decoded(self, t_BOH: Tensor, there_B: Tensor) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for o, target in enumerate(self.targets):
            y = self.lasts[o](self.decoders[o](torch.cat([t_BOH[:, -1], t_BOH[:, o]], dim=1)))
            # with nothing to go by, all classes are equal
            made[target.name] = torch.where(there_B.reshape(-1, *(1 for _ in y.shape[1:])), y, 0.0)
        return made


def subnet(task: Task, state: Blobs) -> Subnet:
    """The network of the route that a state holds, loaded; of several domains, the lowest.

    Raises:
        Refused: the state lacks a tensor of its route, or one has another shape.
    """
    domains = domains_of(state)
    net = Subnet(task, profile_of(task, state), domains[0] if domains else None)
    net.load(flatten(state))
    return net
