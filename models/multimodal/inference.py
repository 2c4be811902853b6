"""The network for inference: any set of modalities present, no label."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.contract import FloatArray, WindowSet
from models.multimodal import prototypes as pt
from models.multimodal.network import MultimodalNetwork
from models.tensors import batch_norms

Impute = Literal["prototype", "mean_feature", "zero_feature", "zero_input"]
Array = NDArray[Any] | Tensor
_ENCODER: Final = "encoder/"
Table = tuple[Array, Array]
"""``values_KD`` and ``rounds_K``: in how many rounds the prototype of a class was updated, 0 if it has none.
"""


class InferenceModel(nn.Module):
    """Network and prototypes in one module: the coordinator evaluates it and exports it to ONNX.

    The tables are buffers in their wire form, ``values_<m>`` (K, D) and ``rounds_<m>`` (K,) for the m-th
    modality, and are scaled and masked on every call: an ONNX model can take them, and the head, as inputs
    (``torch.func.functional_call``), without knowing their values.

    Args:
        net: not copied; put in evaluation mode.
        prototypes: a table for each modality. An absent one counts as a table without any prototype.
        normalise: scale features and prototypes to the length ``feature_scale`` before comparing them.
        feature_scale: that length.
        impute: the value of a missing modality: its posterior-weighted prototype; the plain mean of its
            prototypes; a feature of zeros; or the encoder's feature of an input of zeros (in the raw unit).
            All but the first are baselines.
        trained: ``(K,)``, above 0 if the head has been trained on the class. A class that has a prototype and
            was never trained is novel: the nearest prototype answers for it
            (:func:`models.multimodal.prototypes.with_novel`). None: all are trained.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        prototypes: Mapping[str, Table],
        normalise: bool = True,  # noqa: FBT001, FBT002 - the name of a method's option, given by keyword
        feature_scale: float = 8.0,
        *,
        impute: Impute = "prototype",
        trained: Array | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.normalise = normalise
        self.feature_scale = feature_scale
        self.impute: Impute = impute
        shape = net.shape
        for m, name in enumerate(net.names):
            values, rounds = prototypes.get(name, (torch.zeros(shape), torch.zeros(shape[0])))
            self.register_buffer(f"values_{m}", _float(values).reshape(shape))
            self.register_buffer(f"rounds_{m}", _float(rounds).reshape(shape[0]))
        trained_K = torch.ones(shape[0]) if trained is None else _float(trained).reshape(shape[0])
        self.register_buffer("untrained", trained_K <= 0)
        self.may_be_novel = bool((trained_K <= 0).any())
        """Whether some class is untrained: fixed at creation, so that an ONNX model without one saves the
        work."""
        self.eval()

    @property
    def any_length(self) -> frozenset[str]:
        """The modalities whose windows may have another length: the ONNX model need not fix their T."""
        return self.net.any_length

    def _scaled(self, z: Tensor) -> Tensor:
        return pt.normalise(z, self.feature_scale) if self.normalise else z

    def tables(self) -> tuple[list[Tensor], list[Tensor]]:
        """By modality, prototypes ``values_KD`` in the features' scale (zeros if none), and ``seen_K``."""
        count = len(self.net.names)
        seen = [self.get_buffer(f"rounds_{m}") > 0 for m in range(count)]
        values = [self._scaled(self.get_buffer(f"values_{m}")) for m in range(count)]
        # not a product: the row of a class without prototype may hold NaN
        return [torch.where(s.unsqueeze(1), v, 0.0) for v, s in zip(values, seen, strict=True)], seen

    def encoded(self, present_BM: Tensor, x: tuple[Tensor, ...]) -> list[Tensor]:
        """The M features ``z_BD``; of an input of zeros for a missing modality."""
        z = []
        for m, (name, x_BCT) in enumerate(zip(self.net.names, x, strict=True)):
            # Replaced before any computation: NaN times zero would still be NaN.
            clean_BCT = torch.where(present_BM[:, m, None, None], x_BCT, 0.0)
            z.append(self._scaled(self.net.encode(name, clean_BCT)))
        return z

    def features(self, present_BM: Tensor, x: tuple[Tensor, ...]) -> list[Tensor]:
        """The M features ``z_BD`` for the head, missing ones filled in. ``present_BM`` is bool."""
        values, seen = self.tables()
        z = self.encoded(present_BM, x)
        return self._filled(z, present_BM, values, seen, pt.posterior(z, present_BM, values, seen))

    def _filled(
        self, z: list[Tensor], present_BM: Tensor, values: list[Tensor], seen: list[Tensor], q_BK: Tensor
    ) -> list[Tensor]:
        if self.impute == "zero_input":
            return z
        if self.impute == "zero_feature":
            return [torch.where(present_BM[:, m : m + 1], z_BD, 0.0) for m, z_BD in enumerate(z)]
        weight_BK = torch.ones_like(q_BK) if self.impute == "mean_feature" else q_BK
        return pt.completed(z, present_BM, values, seen, weight_BK)

    def wire(self) -> dict[str, str]:
        """Path in this module of each tensor that a device may replace by its own, by wire name.

        Of encoders these are BatchNorm's alone.
        """
        paths = {f"head/{path}": f"net.head.{path}" for path, _ in self.net.head.named_parameters()}
        for m, name in enumerate(self.net.names):
            paths[f"prototypes/{name}/values"] = f"values_{m}"
            paths[f"prototypes/{name}/rounds"] = f"rounds_{m}"
        for name in batch_norms(self.net.sent):
            if name.startswith(_ENCODER):
                paths[name] = f"net.encoders.{name.removeprefix(_ENCODER).replace('/', '.', 1)}"
        return paths

    def forward(self, present_BM: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities and scores.

        Args:
            present_BM: float32, above one half if the modality is present; columns in the task's order.
            *x: one ``x_BCT`` for each modality in the task's order, in raw units; values of a missing one do
                not matter, NaN included.

        Returns:
            ``probabilities_BK`` and ``logits_BK``. The scores are the head's and do not cover a novel class.
            With no modality present: scores zero, all classes equal.
        """
        here_BM = present_BM > 0.5  # noqa: PLR2004 - ONNX callers feed 0 or 1 as float
        values, seen = self.tables()
        z = self.encoded(here_BM, x)
        q_BK = pt.posterior(z, here_BM, values, seen)
        filled = self._filled(z, here_BM, values, seen, q_BK)
        logits_BK = self.net.classify(dict(zip(self.net.names, filled, strict=True)))
        logits_BK = torch.where(here_BM.any(dim=1, keepdim=True), logits_BK, 0.0)
        if not self.may_be_novel:
            return torch.softmax(logits_BK, dim=1), logits_BK
        novel_K = self.get_buffer("untrained") & torch.stack(seen).any(dim=0)
        return pt.with_novel(logits_BK, q_BK, novel_K), logits_BK


def probabilities(model: InferenceModel, windows: WindowSet) -> FloatArray:
    """``probabilities_BK`` of all windows, in batches; missing modalities as the module imputes them."""
    x = [torch.from_numpy(windows.x[name]) for name in model.net.names]
    present_BM = torch.from_numpy(windows.present_BM.astype(np.float32))
    parts = [np.zeros((0, len(model.get_buffer("untrained"))), np.float32)]
    count = model.net.windows_at_once
    with torch.inference_mode():
        for start in range(0, len(windows), count):
            at = slice(start, start + count)
            parts.append(model(present_BM[at], *(x_BCT[at] for x_BCT in x))[0].numpy())
    return np.concatenate(parts)


def _float(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
