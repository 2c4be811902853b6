"""Functions of local training that methods share. Imports torch: for the worker only.

Deterministic: generators are seeded by :func:`models.seeds.derive_seed`, and torch uses deterministic
algorithms; equal seeds, windows, states and numbers of threads give equal bytes.
"""

import ctypes
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Constants of ``malloc.h``."""
_REUSED_BYTES: Final = 128 * 1024 * 1024


@cache
def reuse_memory() -> None:
    """Make glibc keep freed blocks of up to 128 MB for the next step, not return each to the system.

    Training allocates the same large blocks in every step. Getting their pages anew took a third of the CPU
    time of a round of the reference network. A worker returns freed pages after each job
    (:func:`models.worker.job_loop.shed_memory`).
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:  # in glibc, not in musl
        tune(_M_MMAP_THRESHOLD, _REUSED_BYTES)
        tune(_M_TRIM_THRESHOLD, _REUSED_BYTES)


def start_deterministic(seed: int) -> torch.Generator:
    """Seed torch's global generator (initial values, dropout); return a generator for shuffles and noise."""
    reuse_memory()
    # use_deterministic_algorithms also loads torch's compiler: a second and 76 MB
    torch.set_deterministic_debug_mode("error")
    # It would also fill every new tensor before an operation writes it: a quarter of a forward pass.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # torch.manual_seed also seeds devices that are not used here, and formats a traceback for each
    torch.default_generator.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def learning_rate(initial: float, decay: float, floor: float, round_: int) -> float:
    """``max(floor, initial * decay ** (round - 1))``; the first round trains at ``initial``."""
    return max(floor, initial * decay ** max(0, round_ - 1))


class Sgd:
    """Stochastic gradient descent with momentum and weight decay, equal to ``torch.optim.SGD``.

    torch's class loads its compiler on first use: a second of CPU and 76 MB, too much on a device.

    Args:
        parameters: changed in place by :meth:`step`.
        lr: step size.
        momentum: decay of the velocity.
        weight_decay: L2 penalty, added to the gradient.
        proximal: mu of FedProx's term ``mu / 2 * ||w - w_0||^2`` (Li et al. 2020), whose gradient is added;
            w_0 are the values at construction. Not in torch's class.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        proximal: float = 0.0,
    ) -> None:
        self._parameters = list(parameters)
        self._proximal = proximal
        self._first = [parameter.detach().clone() for parameter in self._parameters] if proximal else []
        self._lr = lr
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._velocity: dict[int, Tensor] = {}

    def descend(self, loss: Tensor) -> None:
        """One gradient step; parameters without a gradient stay."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self.step()

    def step(self) -> None:
        """One step along the gradients that the parameters have; those without one stay."""
        with torch.no_grad():
            for i, parameter in enumerate(self._parameters):
                if parameter.grad is not None:
                    parameter.sub_(self._direction(i, parameter, parameter.grad), alpha=self._lr)

    def _direction(self, i: int, parameter: Tensor, gradient: Tensor) -> Tensor:
        if self._weight_decay:
            gradient = gradient + self._weight_decay * parameter
        if self._proximal:
            gradient = gradient + self._proximal * (parameter - self._first[i])
        if not self._momentum:
            return gradient
        if i in self._velocity:
            gradient = gradient + self._momentum * self._velocity[i]
        self._velocity[i] = gradient
        return gradient


class Adam:
    """Adam, equal to ``torch.optim.AdamW``, on all parameters at once: fast for many small ones.

    Args:
        parameters: moved into one block of memory, then changed in place by :meth:`descend`. Those without a
            gradient have one of zero.
        lr: step size.
        weight_decay: decoupled decay, times ``lr``.
        betas: decay of the first and of the second moment.
        eps: keeps steps of small gradients finite.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        own = list(parameters)
        self._value_W = torch.cat([p.detach().reshape(-1) for p in own])
        self._slope_W, self._mean_W, self._square_W = (torch.zeros_like(self._value_W) for _ in range(3))
        self._lr, self._weight_decay, self._betas, self._eps = lr, weight_decay, betas, eps
        self._sizes, self._steps = torch.tensor([len(self._value_W)]), torch.zeros(1, dtype=torch.float64)
        at = 0
        for p in own:
            end = at + p.numel()
            p.data, p.grad = self._value_W[at:end].view_as(p), self._slope_W[at:end].view_as(p)
            at = end

    def resume(self, moments: Sequence[tuple[Tensor, Tensor, float]]) -> None:
        """Restore the result of :meth:`moments`, by run of parameters, in order.

        Args:
            moments: first moment, second moment, both flat, and number of steps.
        """
        self._mean_W = torch.cat([mean for mean, _, _ in moments])
        self._square_W = torch.cat([square for _, square, _ in moments])
        self._sizes = torch.tensor([len(mean) for mean, _, _ in moments])
        self._steps = torch.tensor([steps for _, _, steps in moments], dtype=torch.float64)

    def moments(self, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor, float]]:
        """Moments for :meth:`resume`, by run of parameters of these lengths."""
        each_W = torch.repeat_interleave(self._steps, self._sizes)
        runs = list(sizes)
        parts = zip(torch.split(self._mean_W, runs), torch.split(self._square_W, runs), strict=True)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [(mean, square, float(each_W[at])) for at, (mean, square) in zip(starts, parts, strict=True)]

    def _corrections(self) -> tuple[Tensor | float, Tensor | float]:
        """The bias corrections of both moments."""
        first, second = (1 - beta**self._steps for beta in self._betas)
        if len(self._steps) == 1:
            return first.item(), second.item()
        return tuple(torch.repeat_interleave(c.to(torch.float32), self._sizes) for c in (first, second))  # type: ignore[return-value]  # two of them

    def descend(self, loss: Tensor) -> None:
        """One gradient step."""
        self._slope_W.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._steps += 1
        mean_short, square_short = self._corrections()
        first, second = self._betas
        with torch.no_grad():
            self._mean_W.lerp_(self._slope_W, 1 - first)
            self._square_W.mul_(second).addcmul_(self._slope_W, self._slope_W, value=1 - second)
            root_W = (self._square_W / square_short).sqrt_().add_(self._eps)
            if self._weight_decay:
                self._value_W.mul_(1 - self._lr * self._weight_decay)
            self._value_W.addcdiv_(self._mean_W / mean_short, root_W, value=-self._lr)


def norms(part: nn.Module) -> list[Tensor]:
    """Copies of the running statistics of every BatchNorm in ``part``, for :func:`restore_norms`."""
    return [buffer.clone() for buffer in _statistics(part)]


def restore_norms(part: nn.Module, before: Iterable[Tensor]) -> None:
    """Restore the running statistics of :func:`norms`."""
    for buffer, value in zip(_statistics(part), before, strict=True):
        buffer.copy_(value)


def _statistics(part: nn.Module) -> Iterator[Tensor]:
    return (b for module in part.modules() if isinstance(module, nn.BatchNorm1d) for b in module.buffers())


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled indices in batches of nearly equal length, at most ``size`` each.

    BatchNorm needs batches of similar length.
    """
    if count:
        yield from torch.randperm(count, generator=generator).tensor_split(math.ceil(count / size))


def balanced_batches(y_N: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """As :func:`batches`, with windows drawn so that each class that occurs is as probable as the others.

    Windows of rare classes come several times in an epoch, and some of frequent ones not at all.

    Args:
        y_N: classes of all windows.
        size: of a batch, at most.
        generator: of random numbers.
    """
    if len(y_N):
        share_N = 1.0 / torch.bincount(y_N)[y_N]
        drawn_N = torch.multinomial(share_N, len(y_N), replacement=True, generator=generator)
        yield from drawn_N.tensor_split(math.ceil(len(y_N) / size))


def kept(present_BM: Tensor, droppable_BM: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Modality dropout on ``present_BM`` (bool); every window keeps at least one present modality.

    Args:
        present_BM: which modalities each window has.
        droppable_BM: bool; which may be dropped.
        share: probability of dropping each.
        generator: of random numbers.
    """
    chance_BM = torch.rand(present_BM.shape, generator=generator)
    keep_BM = present_BM & ~(droppable_BM & (chance_BM < share))
    # if all would be dropped, one stays at random: the one with the largest number
    last_B = torch.where(present_BM, chance_BM, -1.0).argmax(dim=1)
    last_BM = torch.nn.functional.one_hot(last_B, present_BM.shape[1]).bool()
    return keep_BM | (last_BM & present_BM & ~keep_BM.any(dim=1, keepdim=True))


def rotations(count: int, max_deg: float, generator: torch.Generator) -> Tensor:
    """Rotations ``(count, 3, 3)``: random axes, uniform angles in ``[-max_deg, max_deg]`` (Rodrigues)."""
    axis_B3 = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator), dim=1)
    angle_B11 = (2 * torch.rand(count, 1, 1, generator=generator) - 1) * math.radians(max_deg)
    x, y, z = axis_B3.unbind(dim=1)
    zero = torch.zeros_like(x)
    cross_B33 = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).reshape(count, 3, 3)
    eye_33 = torch.eye(3).expand(count, 3, 3)
    return eye_33 + angle_B11.sin() * cross_B33 + (1 - angle_B11.cos()) * (cross_B33 @ cross_B33)


def augmented(
    x: Mapping[str, Tensor],
    rotate_deg: float,
    gain: float,
    housings: Sequence[Collection[str]],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Augment a batch's windows by random rotation and gain; zeros (missing) stay zeros.

    Args:
        x: ``x_BCT`` by modality.
        rotate_deg: maximum angle; 0 for none.
        gain: maximum relative change, drawn by window and modality; 0 for none.
        housings: groups of modalities whose three channels are axes: those of a group rotate together, groups
            independently. Others do not rotate.
        generator: of random numbers.
    """
    out = dict(x)
    if rotate_deg > 0 and x:
        for group in housings:
            turn_B33 = rotations(len(next(iter(x.values()))), rotate_deg, generator)
            out |= {name: turn_B33 @ x_BCT for name, x_BCT in out.items() if name in group}
    if gain > 0:
        for name, x_BCT in out.items():
            factor_B11 = 1 + gain * (2 * torch.rand(len(x_BCT), 1, 1, generator=generator) - 1)
            out[name] = x_BCT * factor_B11
    return out
