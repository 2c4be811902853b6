"""DP-SGD on the device (Abadi et al. 2016): clipped gradients of single windows, and noise. Imports torch.

BatchNorm normalises by the statistics of the version, in training as at inference, and does not measure them:
the statistics of a batch would mix its windows. Its weight and bias are trained.

Which windows a step takes, and the noise, come from the operating system: the round's seed is known to the
coordinator. So the same seed gives other bytes each time. Metrics say nothing of losses or hits, which would
tell of windows without noise.

Shapes: B windows of a step, N of a round, M modalities, C channels, T samples, K classes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from models.contract import WindowSet
from models.multimodal.network import MultimodalNetwork
from models.multimodal.prototypes import normalise
from models.privacy.local.system_random import system_noise, system_uniform
from models.privacy.local.training_plan import TrainingPlan
from models.training import local
from models.training.supervised import Batch, SupervisedTraining, TrainingTask, whole
from models.training.supervised_options import SupervisedConfig
from protocol.tasks.folding import LocalPrivacy

_VALUES: Final = 1 << 24
"""Limit of the values of gradients in memory at a time (64 MB)."""
_ROUNDING: Final = 1 + 1e-5
"""More noise by this factor covers what float32 adds to a clipped gradient and to a sum."""
Gradients = dict[str, Tensor]


class WindowLoss(nn.Module):
    """The loss of one window, as training and inference compute it; a missing modality is a feature of zeros.

    Args:
        net: in evaluation mode.
        length: of a feature; None: features keep theirs.
        weight_K: of the classes; None: all count alike.
    """

    def __init__(self, net: MultimodalNetwork, length: float | None, weight_K: Tensor | None = None) -> None:
        super().__init__()
        self.net = net
        self._length = length
        self._weight_K = weight_K

    def forward(self, x: Mapping[str, Tensor], present_M: Tensor, y: Tensor) -> Tensor:
        """The loss of a window ``x_CT`` by modality, of class ``y``."""
        z = {}
        for m, name in enumerate(self.net.names):
            z_1D = self.net.encode(name, x[name].unsqueeze(0))
            z_1D = z_1D if self._length is None else normalise(z_1D, self._length)
            z[name] = torch.where(present_M[m], z_1D, 0.0)
        logits_1K = self.net.classify(z)
        return functional.cross_entropy(logits_1K, y.unsqueeze(0), self._weight_K, reduction="sum")


def clipped_sum(loss: WindowLoss, trained: Sequence[str], batch: Batch, clip: float) -> Gradients:
    """The sum of the gradients of single windows, each scaled to a norm of ``clip`` at most.

    The norm is over all trained tensors. A gradient that is not finite counts as zero.

    Args:
        loss: of a window.
        trained: names of its parameters.
        batch: no window or more.
        clip: L2 norm.
    """
    every = {**dict(loss.named_parameters()), **dict(loss.named_buffers())}
    values = {name: every[name].detach() for name in trained}
    others = {name: tensor.detach() for name, tensor in every.items() if name not in values}
    total = {name: torch.zeros_like(tensor) for name, tensor in values.items()}

    def of_one(own: Gradients, x: Mapping[str, Tensor], present_M: Tensor, y: Tensor) -> Tensor:
        found: Tensor = functional_call(loss, {**own, **others}, (x, present_M, y))
        return found

    gradients = vmap(grad(of_one), in_dims=(None, 0, 0, 0))
    at_once = max(1, _VALUES // sum(tensor.numel() for tensor in values.values()))
    for rows_B in torch.split(torch.arange(len(batch.y_B)), at_once) if len(batch.y_B) else ():
        x = {name: x_BCT[rows_B] for name, x_BCT in batch.x.items()}
        with warnings.catch_warnings():  # of the LSTM, which is computed window by window
            warnings.filterwarnings("ignore", "There is a performance drop")
            made = gradients(values, x, batch.present_BM[rows_B], batch.y_B[rows_B])
        flat = {name: g.flatten(1) for name, g in made.items()}
        norm_B = torch.stack([g.square().sum(dim=1) for g in flat.values()]).sum(dim=0).sqrt()
        factor_B = torch.where(norm_B.isfinite(), (clip / norm_B).clamp(max=1.0), 0.0)
        for name, g in flat.items():
            finite = torch.where(norm_B.isfinite().unsqueeze(1), g, 0.0)
            total[name] += (factor_B @ finite).view_as(total[name])
    return total


class PrivateTraining(SupervisedTraining):
    """One device's training in one round with DP-SGD, on ``net`` in place.

    Attributes:
        plan: of the round, after :meth:`run`; what the account is charged with.

    Args:
        net: with the values that the round begins with.
        about: of the task.
        options: of the method.
        privacy: clip and noise.
        generator: of augmentation.
        proximal: see :class:`models.training.local.Sgd`.
    """

    def __init__(
        self,
        net: MultimodalNetwork,
        about: TrainingTask,
        options: SupervisedConfig,
        privacy: LocalPrivacy,
        generator: torch.Generator,
        *,
        proximal: float = 0.0,
    ) -> None:
        super().__init__(net, about, options, generator, proximal=proximal)
        self._privacy = privacy
        self.plan = TrainingPlan(1.0, 0)

    def run(self, windows: WindowSet, round_: int) -> dict[str, float]:
        """All steps; metrics that tell of no window's content."""
        options, net = self._options, self._net
        lr = local.learning_rate(options.lr, options.lr_decay, options.lr_min, round_)
        self.plan = TrainingPlan.of(options.batch, options.epochs, len(windows))
        # which modalities a device has is known; which windows a step takes must not show in what it sends
        self.trained = frozenset(name for m, name in enumerate(net.names) if windows.present_BM[:, m].any())
        loss = WindowLoss(
            net, options.feature_scale if options.normalise else None, self.class_weight(windows)
        )
        trained = dict(self._parameters(loss))
        sgd = local.Sgd(trained.values(), lr, options.momentum, options.weight_decay, self._proximal)
        net.eval()
        everything = whole(windows, net.names)
        for _ in range(self.plan.steps):
            # of numbers in (0, 1], those up to the rate
            taken_N = torch.from_numpy(system_uniform(len(windows)) <= self.plan.rate)
            batch = self.batch(everything, taken_N.nonzero().flatten()) if taken_N.any() else None
            self._descend(sgd, loss, trained, batch, len(windows))
        return {"lr": lr, "steps": float(self.plan.steps), "rate": self.plan.rate}

    def _parameters(self, loss: WindowLoss) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of the head and of the encoders that have windows, by their names in ``loss``."""
        parts = ("net.head.", *(f"net.encoders.{name}." for name in self.trained))
        return ((name, one) for name, one in loss.named_parameters() if name.startswith(parts))

    def _descend(
        self,
        sgd: local.Sgd,
        loss: WindowLoss,
        trained: Mapping[str, nn.Parameter],
        batch: Batch | None,
        windows: int,
    ) -> None:
        """One step; one that takes no window moves by noise alone."""
        privacy = self._privacy
        sigma = privacy.noise_multiplier * privacy.clip * _ROUNDING
        made = {} if batch is None else clipped_sum(loss, tuple(trained), batch, privacy.clip)
        for name, parameter in trained.items():
            noise = torch.from_numpy(system_noise(tuple(parameter.shape)) * sigma).to(parameter.dtype)
            total = noise if name not in made else made[name] + noise
            parameter.grad = total / (self.plan.rate * windows)
        sgd.step()
