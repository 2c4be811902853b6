"""The baselines' networks: DisentAFL's encoders and decoders with another fusion. Imports torch.

Shapes: B windows, C channels, T samples, M modalities of the device, D features of an encoder, F of a part.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor, nn

from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import GROUP_ONLY, LAST
from models.contract import Profile
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.network.attention import AttentionEncoder, Layer
from models.methods.disentafl.network.supernet import Decoder, Last
from models.seeds import derive_seed
from protocol.tasks.task import Task

LATENT: Final = "latent"
"""Name of the segment that is the whole latent vector."""


@dataclass(frozen=True)
class BaselineView:
    """What a network makes of windows.

    Attributes:
        made: target -> normalised prediction.
        z: segment -> ``z_BF``, what distillation may compare.
    """

    made: dict[str, Tensor]
    z: dict[str, Tensor]


class BaselineNetwork(nn.Module):
    """One device's network.

    Args:
        task: names and shapes.
        profile: what the device reads and predicts.
        config: sizes of encoders and decoders.
        seed: of the initial values; blocks of the same name and shape begin alike on all devices.

    Attributes:
        encoders: by modality; ``h_BD`` of normalised windows, the mean over positions.
        decoders: by target, all but the last layer.
        lasts: by target.
        modalities: that it reads.
        targets: that it predicts.
    """

    def __init__(self, task: Task, profile: Profile, config: DisentAflConfig, seed: int) -> None:
        super().__init__()
        self.task, self.profile, self.config, self._seed = task, profile, config, seed
        self.modalities, inputs = profile.modalities, [task.modality(m) for m in profile.modalities]
        self.targets = targets = tuple(task.target(o) for o in profile.targets)
        self._affine = [(m.offset, m.scale) for m in inputs]
        wide = config.model_copy(update={"width": self.decoder_inputs()})
        self.encoders = self._all(
            "encoder",
            {m.name: partial(AttentionEncoder, m, task.samples(m.name), config) for m in inputs},
        )
        self.decoders = self._all("decoder", {t.name: partial(Decoder, t, wide) for t in targets})
        self.lasts = self._all("last", {t.name: partial(Last, t, task, config) for t in targets})

    def _all(self, kind: str, makers: Mapping[str, Callable[[], nn.Module]]) -> nn.ModuleDict:
        """Modules by name, each with the initial values that its kind and name have everywhere."""
        made = nn.ModuleDict()
        for name, make in makers.items():
            torch.manual_seed(derive_seed(self._seed, kind, name))
            made[name] = make()
        return made

    def decoder_inputs(self) -> int:
        """Features that a decoder reads."""
        raise NotImplementedError

    def fused(self, h_BMD: Tensor, present_BM: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What each decoder reads, by target, and the segments.

        Args:
            h_BMD: zeros where a window lacks the modality.
            present_BM: 1 where it has it, else 0.
        """
        raise NotImplementedError

    def forward(self, present_BM: Tensor, *x: Tensor) -> BaselineView:
        """Windows, one ``x_BCT`` a modality in its unit, and which of them each window has (bool)."""
        there_BM = present_BM.to(x[0].dtype)
        parts = zip(self.encoders.values(), x, self._affine, strict=True)
        h_BMD = torch.stack([encode((x_BCT - low) / scale) for encode, x_BCT, (low, scale) in parts], dim=1)
        t, z = self.fused(h_BMD * there_BM[:, :, None], there_BM)
        return BaselineView({o: self.lasts[o](decode(t[o])) for o, decode in self.decoders.items()}, z)

    def blocks(self) -> dict[str, list[nn.Parameter]]:
        """The parts that devices share or keep, by name: encoders without their last layer, and so on.

        The decoders' last layers are parts of their own if devices keep or blend them.
        """
        parts = {}
        for m, encoder in cast("Iterable[tuple[str, AttentionEncoder]]", self.encoders.items()):
            last = [*cast("Layer", encoder.layers[-1]).down.parameters(), *encoder.norm.parameters()]
            ids = {id(parameter) for parameter in last}
            parts[f"encoder/{m}"] = [p for p in encoder.parameters() if id(p) not in ids]
            parts[f"{GROUP_ONLY}encoder/{m}"] = last
        for o, decoder in self.decoders.items():
            last = [*self.lasts[o].parameters()]
            whole = self.config.last_layer == "shared"
            parts[f"decoder/{o}"] = [*decoder.parameters(), *(last if whole else ())]
            if not whole:
                parts[f"{LAST}{o}"] = last
        return parts


def mean_over(h_BMD: Tensor, present_BM: Tensor) -> Tensor:
    """Over the modalities that a window has; zeros where it has none."""
    mean_BD: Tensor = h_BMD.sum(dim=1) / present_BM.sum(dim=1, keepdim=True).clamp(min=1)
    return mean_BD


class Concatenated(BaselineNetwork):
    """Local and FedAvg: all private halves and the mean of the shared halves, side by side.

    The paper then cuts this vector into one part that all decoders read and one each that a single decoder
    reads, in sizes that seldom are whole numbers. Here every decoder reads all of it: it can learn to leave
    out what it does not need, and loses nothing.
    """

    def decoder_inputs(self) -> int:
        """``D / 2 * (M + 1)``."""
        return self.config.width // 2 * (len(self.profile.modalities) + 1)

    def fused(self, h_BMD: Tensor, present_BM: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See :meth:`Network.fused`; there are no segments."""
        share_BMH, own_BMH = h_BMD.chunk(2, dim=2)
        z_BF = torch.cat([mean_over(share_BMH, present_BM), own_BMH.flatten(1)], dim=1)
        return dict.fromkeys(self.profile.targets, z_BF), {}


class Aligned(BaselineNetwork):
    """Align-FedAvg and FedMSplit: one latent vector for all modalities and targets, the mean of ``h_BD``."""

    def decoder_inputs(self) -> int:
        """D."""
        return self.config.width

    def fused(self, h_BMD: Tensor, present_BM: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See :meth:`Network.fused`; the one segment is the whole vector."""
        z_BD = mean_over(h_BMD, present_BM)
        return dict.fromkeys(self.profile.targets, z_BD), {LATENT: z_BD}


class Segmented(BaselineNetwork):
    """Cross-FedAvg and Cross-PFL: ``h_BD`` has a segment for each of the task's targets.

    A decoder reads its target's segment of each modality through a linear layer of its own, the decoder's
    first one and of another shape in each group, so that it is shared within the group alone; the rest of
    the decoder is what is shared beyond it.
    """

    def __init__(self, task: Task, profile: Profile, config: DisentAflConfig, seed: int) -> None:
        super().__init__(task, profile, config, seed)
        sizes = [len(part) for part in torch.arange(config.width).tensor_split(len(task.objectives))]
        self._place = {o: task.target_names.index(o) for o in profile.targets}
        inputs = {o: sizes[at] * len(profile.modalities) for o, at in self._place.items()}
        self.firsts = self._all(
            "first", {o: partial(nn.Linear, inputs[o], config.width) for o in profile.targets}
        )

    def decoder_inputs(self) -> int:
        """D."""
        return self.config.width

    def fused(self, h_BMD: Tensor, present_BM: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """See :meth:`Network.fused`; a segment ``<modality>.<target>`` each."""
        del present_BM
        parts = h_BMD.tensor_split(len(self.task.objectives), dim=2)
        t = {o: self.firsts[o](parts[at].flatten(1)) for o, at in self._place.items()}
        segments = {
            f"{m}.{o}": parts[at][:, i]
            for i, m in enumerate(self.profile.modalities)
            for o, at in self._place.items()
        }
        return t, segments

    def blocks(self) -> dict[str, list[nn.Parameter]]:
        """As :meth:`Network.blocks`, with the decoders' first layers."""
        firsts = {f"{GROUP_ONLY}first/{o}": [*first.parameters()] for o, first in self.firsts.items()}
        return super().blocks() | firsts
