"""The network as a device runs it: any set of modalities present, no label."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.multimodal import prototypes as pt
from models.multimodal.network import MultimodalNetwork

Impute = Literal["prototype", "zero_feature", "zero_input"]
Table = tuple[NDArray[Any] | Tensor, NDArray[Any] | Tensor]
"""``values_KD`` and ``rounds_K``: how many rounds the prototype of a class has seen, 0 where it has none."""


class InferenceModel(nn.Module):
    """Network and prototypes in one graph: what the coordinator evaluates and what is exported to ONNX.

    Args:
        net: kept, not copied; put in evaluation mode.
        prototypes: a table for each modality. One that is absent counts as a table without any prototype.
        normalise: scale features and prototypes to the length ``feature_scale`` before they meet.
        feature_scale: that length.
        impute: what stands for a missing modality: its posterior-weighted prototype; a feature of zeros; or
            the encoder's feature of an input of zeros (in the raw unit). The last two are baselines.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        prototypes: Mapping[str, Table],
        normalise: bool = True,  # noqa: FBT001, FBT002 - the name of a method's option, given by keyword
        feature_scale: float = 8.0,
        *,
        impute: Impute = "prototype",
    ) -> None:
        super().__init__()
        self.net = net
        self.normalise = normalise
        self.feature_scale = feature_scale
        self.impute: Impute = impute
        shape = (net.head.fc2.out_features, net.head.fc1.in_features // len(net.names))
        for m, name in enumerate(net.names):
            values, rounds = prototypes.get(name, (torch.zeros(shape), torch.zeros(shape[0])))
            values_KD = torch.as_tensor(values, dtype=torch.float32).reshape(shape)
            seen_K = torch.as_tensor(rounds).reshape(shape[0]) > 0
            values_KD = torch.where(seen_K.unsqueeze(1), self._scaled(values_KD), 0.0)
            self.register_buffer(f"values_{m}", values_KD)
            self.register_buffer(f"seen_{m}", seen_K)
        self.eval()

    def _scaled(self, z: Tensor) -> Tensor:
        return pt.normalise(z, self.feature_scale) if self.normalise else z

    def features(self, present_BM: Tensor, x: tuple[Tensor, ...]) -> list[Tensor]:
        """The M features ``z_BD`` that the head sees, missing ones filled in. ``present_BM`` is bool."""
        z = []
        for m, (name, x_BCT) in enumerate(zip(self.net.names, x, strict=True)):
            # Replaced before anything is computed: NaN times zero would still be NaN.
            clean_BCT = torch.where(present_BM[:, m, None, None], x_BCT, 0.0)
            z.append(self._scaled(self.net.encode(name, clean_BCT)))
        if self.impute == "zero_input":
            return z
        if self.impute == "zero_feature":
            return [torch.where(present_BM[:, m : m + 1], z_BD, 0.0) for m, z_BD in enumerate(z)]
        values = [self.get_buffer(f"values_{m}") for m in range(len(z))]
        seen = [self.get_buffer(f"seen_{m}") for m in range(len(z))]
        return pt.complete(z, present_BM, values, seen)

    def forward(self, present_BM: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities and scores.

        Args:
            present_BM: float32, above one half where the modality is there; columns in the task's order.
            *x: one ``x_BCT`` for each modality in the task's order, in raw units; what a missing one holds
                does not matter, NaN included.

        Returns:
            ``probabilities_BK`` and ``logits_BK``. With nothing present: logits zero, all classes equal.
        """
        here_BM = present_BM > 0.5  # noqa: PLR2004 - ONNX callers feed 0 or 1 as float
        z = self.features(here_BM, x)
        logits_BK = self.net.classify(dict(zip(self.net.names, z, strict=True)))
        logits_BK = torch.where(here_BM.any(dim=1, keepdim=True), logits_BK, 0.0)
        return torch.softmax(logits_BK, dim=1), logits_BK
