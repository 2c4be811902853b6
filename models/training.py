"""Pieces of local training that methods share. Imports torch: for the worker only.

Determinism: everything random comes from generators seeded by :func:`derive_seed`, with torch's
deterministic algorithms; the same seed, windows, globals and number of threads give the same bytes.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from a seed and what it is used for (device, round, purpose); stable across releases."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def start_deterministic(seed: int) -> torch.Generator:
    """Seed torch's own generator (initial values, dropout); return a generator for shuffles and noise."""
    # use_deterministic_algorithms does the same and loads torch's compiler besides: a second and 76 MB
    torch.set_deterministic_debug_mode("error")
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def learning_rate(initial: float, decay: float, floor: float, round_: int) -> float:
    """``max(floor, initial * decay ** (round - 1))``; the first round trains at ``initial``."""
    return max(floor, initial * decay ** max(0, round_ - 1))


class Sgd:
    """Stochastic gradient descent with momentum and weight decay, as ``torch.optim.SGD`` does it.

    That one loads torch's compiler on first use: a second of CPU and 76 MB, too much on a device.

    Args:
        parameters: changed in place by :meth:`step`.
        lr: step size.
        momentum: share of the last step's direction that is kept.
        weight_decay: pull towards zero, relative to the step.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self._parameters = list(parameters)
        self._lr = lr
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity: dict[int, Tensor] = {}

    def descend(self, loss: Tensor) -> None:
        """One step down the loss's gradient; parameters that the loss does not depend on stay."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for i, parameter in enumerate(self._parameters):
                if parameter.grad is not None:
                    parameter.sub_(self._direction(i, parameter, parameter.grad), alpha=self._lr)

    def _direction(self, i: int, parameter: Tensor, gradient: Tensor) -> Tensor:
        if self._weight_decay:
            gradient = gradient + self._weight_decay * parameter
        if not self._momentum:
            return gradient
        if i in self._velocity:
            gradient = gradient + self._momentum * self._velocity[i]
        self._velocity[i] = gradient
        return gradient


def norms(part: nn.Module) -> list[Tensor]:
    """Copies of the running statistics of every BatchNorm in ``part``, for :func:`restore_norms`."""
    return [buffer.clone() for buffer in _statistics(part)]


def restore_norms(part: nn.Module, before: Iterable[Tensor]) -> None:
    """Set the running statistics to what :func:`norms` gave."""
    for buffer, value in zip(_statistics(part), before, strict=True):
        buffer.copy_(value)


def _statistics(part: nn.Module) -> Iterator[Tensor]:
    return (b for module in part.modules() if isinstance(module, nn.BatchNorm1d) for b in module.buffers())


def remeasure_norms(part: nn.Module, passes: Iterable[Callable[[], object]]) -> None:
    """Set BatchNorm's running statistics to those of the parameters as they are now.

    A round has few steps, so statistics that move by a tenth a step lag far behind, and features at inference
    (and prototypes made of them) differ from those that training sees.

    Args:
        part: an encoder; in evaluation mode afterwards.
        passes: each runs ``part`` on a batch; their statistics are averaged.
    """
    norms = [module for module in part.modules() if isinstance(module, nn.BatchNorm1d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a plain mean over all batches
    part.train()
    with torch.no_grad():
        for run in passes:
            run()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    part.eval()


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled indices in batches of nearly equal length, at most ``size`` each.

    There is no tiny last batch that would upset BatchNorm.
    """
    if count:
        yield from torch.randperm(count, generator=generator).tensor_split(math.ceil(count / size))


def kept(present_BM: Tensor, droppable_BM: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Modality dropout: what is left of ``present_BM`` (bool), never nothing of a window that had something.

    Args:
        present_BM: which modalities each window has.
        droppable_BM: bool; those that may be dropped.
        share: the probability with which each of them is.
        generator: source of chance.
    """
    chance_BM = torch.rand(present_BM.shape, generator=generator)
    keep_BM = present_BM & ~(droppable_BM & (chance_BM < share))
    # where all would go, any of them stays, each as likely: the one that drew the largest number
    last_B = torch.where(present_BM, chance_BM, -1.0).argmax(dim=1)
    last_BM = torch.nn.functional.one_hot(last_B, present_BM.shape[1]).bool()
    return keep_BM | (last_BM & present_BM & ~keep_BM.any(dim=1, keepdim=True))


def rotations(count: int, max_deg: float, generator: torch.Generator) -> Tensor:
    """Rotations ``(count, 3, 3)`` about random axes, angles even in ``[-max_deg, max_deg]`` (Rodrigues)."""
    axis_B3 = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator), dim=1)
    angle_B11 = (2 * torch.rand(count, 1, 1, generator=generator) - 1) * math.radians(max_deg)
    x, y, z = axis_B3.unbind(dim=1)
    zero = torch.zeros_like(x)
    cross_B33 = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).reshape(count, 3, 3)
    eye_33 = torch.eye(3).expand(count, 3, 3)
    return eye_33 + angle_B11.sin() * cross_B33 + (1 - angle_B11.cos()) * (cross_B33 @ cross_B33)


def augmented(
    x: Mapping[str, Tensor], rotate_deg: float, gain: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """A batch's windows, turned and scaled at random; zeros (missing) stay zeros.

    Args:
        x: ``x_BCT`` by modality; modalities of three channels are taken as axes of one housing and turn
            together.
        rotate_deg: largest angle; 0 turns nothing.
        gain: largest relative change of size, drawn per window and modality; 0 changes nothing.
        generator: source of chance.
    """
    out = dict(x)
    if rotate_deg > 0 and x:
        turn_B33 = rotations(len(next(iter(x.values()))), rotate_deg, generator)
        out = {name: turn_B33 @ x_BCT if x_BCT.shape[1] == 3 else x_BCT for name, x_BCT in out.items()}  # noqa: PLR2004 - axes
    if gain > 0:
        for name, x_BCT in out.items():
            factor_B11 = 1 + gain * (2 * torch.rand(len(x_BCT), 1, 1, generator=generator) - 1)
            out[name] = x_BCT * factor_B11
    return out
