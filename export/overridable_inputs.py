"""Tensors that a device may replace by its own: inputs of the ONNX model with a default, by wire name.

ONNX writes one down as an input and an initializer of the same name; onnxruntime calls it an
overridable initializer, and uses the default if a caller feeds nothing. Each is also an output, so that a
device can read the default that it blends with its own tensor: an output costs nothing unless requested.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from models.contract import Tensors
from models.tensors import NEVER_NEGATIVE

_ROUNDS: Final = "/rounds"
_AT_THE_END: Final = frozenset({"head", "prototypes", "last"})
"""Parts with at most one layer after them."""
Paths = Mapping[str, str]
"""Wire name -> path in the module."""


def paths_of(module: nn.Module, parts: tuple[str, ...]) -> dict[str, str]:
    """The tensors of these parts of a state (first words of blob names) in an inference module, sorted.

    The module's ``wire()`` maps wire names of replaceable tensors to paths. Others stay constants, which
    onnxruntime folds.
    """
    wire = getattr(module, "wire", None)
    paths: Paths = {} if wire is None else wire()
    return {name: paths[name] for name in sorted(paths) if name.split("/")[0] in parts}


def values_of(module: nn.Module, paths: Paths) -> Tensors:
    """The module's values by wire name, copied: the defaults."""
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: named[path].detach().numpy().astype(np.float32) for name, path in paths.items()}


def replaced(
    module: nn.Module, paths: Paths, own: Tensors, arguments: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The torch module's outputs with a device's own tensors."""
    values = {paths[name]: torch.from_numpy(value) for name, value in own.items()}
    answer: tuple[Tensor, ...] = torch.func.functional_call(module, values, arguments)
    return answer


class Open(nn.Module):
    """An inference module that takes ``present_BM``, its windows, and then the tensors of ``paths``."""

    def __init__(self, module: nn.Module, paths: Paths, modalities: int) -> None:
        super().__init__()
        self.module, self._paths, self._count = module, tuple(paths.values()), 1 + modalities

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """As the wrapped module."""
        values = dict(zip(self._paths, arguments[self._count :], strict=True))
        answer: tuple[Tensor, ...] = torch.func.functional_call(self.module, values, arguments[: self._count])
        return answer


def with_defaults(proto: onnx.ModelProto, defaults: Tensors) -> None:
    """Give inputs of an ONNX model their defaults, and add them as outputs."""
    inputs = {i.name: i for i in proto.graph.input}
    for name, value in defaults.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
        proto.graph.output.append(inputs[name])


def examples(defaults: Tensors) -> list[Tensors]:
    """Examples of a device's tensors: changed ones, some without a prototype, one table without any."""
    rng = np.random.default_rng(len(defaults))
    mixed, bare = {}, {}
    for name, value in defaults.items():
        # Small if layers follow, which amplify rounding.
        least = 0.1 if name.split("/", maxsplit=1)[0] in _AT_THE_END else 0.01
        moved = value + (least + np.abs(value).mean()) * rng.standard_normal(value.shape)
        if name.endswith(NEVER_NEGATIVE):
            moved = value * (0.5 + rng.random(value.shape))
        some = rng.integers(0, 3, value.shape)
        mixed[name] = (some if name.endswith(_ROUNDS) else moved).astype(np.float32)
        bare[name] = np.zeros_like(value) if name.endswith(_ROUNDS) else value[..., ::-1].copy()
    return [mixed, bare]
