"""Clipped gradients of single windows: as by Opacus, and by a backward pass each; no content exceeds them."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional

from models.multimodal.encoders.steps import BatchNorm
from models.multimodal.network import MultimodalNetwork, build
from models.privacy.local.private_training import WindowLoss, clipped_sum
from models.training.supervised import Batch
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task

KINDS = ("cnn1d", "mlp", "lstm", "tcn", "transformer1d")
COUNT = 9
STEP, HEAD = "net.encoders.one.", "net.head."


class FixedNorm(nn.Module):
    """BatchNorm by fixed statistics, as a module without buffers, which Opacus takes."""

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(norm.weight.detach().clone()),
            nn.Parameter(norm.bias.detach().clone()),
        )
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self._fixed = [(norm.running_mean.clone(), (norm.running_var + norm.eps).rsqrt())]

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *([1] * (x.dim() - 2)))
        mean, scale = (one.view(shape) for one in self._fixed[0])
        return (x - mean) * scale * self.weight.view(shape) + self.bias.view(shape)


def network(kind: str, modalities: int = 1) -> MultimodalNetwork:
    """With statistics that are not those of a fresh network."""
    torch.manual_seed(0)
    if kind == "mlp":
        every = [Modality(name=name, kind="vector", channels=12, rate_hz=1.0) for name in ("one", "two")]
    else:
        every = [Modality(name=name, channels=3, rate_hz=25.0) for name in ("one", "two")]
    some = every[:modalities]
    encoders = {one.name: Encoder(kind=kind, width=8, depth=2) for one in some}
    its = Network(encoders=encoders, feature_dim=6, hidden_dim=5)
    net = build(Task(name="t", method="fedavg", labels=("a", "b", "c"), modalities=tuple(some), network=its))
    for module in net.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2.0)
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5)
    return net.eval()


def batch(net: MultimodalNetwork, present: list[list[bool]] | None = None) -> Batch:
    torch.manual_seed(1)
    points = 1 if net.encoders["one"].__class__.__name__ == "Mlp" else 64
    channels = 12 if points == 1 else 3
    x = {name: 2 * torch.randn(COUNT, channels, points) for name in net.names}
    present_BM = (
        torch.ones(COUNT, len(net.names), dtype=torch.bool) if present is None else torch.tensor(present)
    )
    return Batch(x, present_BM, torch.arange(COUNT) % 3, torch.arange(COUNT))


def trained(loss: WindowLoss) -> tuple[str, ...]:
    return tuple(name for name, _ in loss.named_parameters())


def by_backward(loss: WindowLoss, given: Batch) -> list[dict[str, Tensor]]:
    """The gradient of each window, by a backward pass of its own."""
    found = []
    for i in range(len(given.y_B)):
        loss.zero_grad()
        loss(
            {name: x_BCT[i] for name, x_BCT in given.x.items()}, given.present_BM[i], given.y_B[i]
        ).backward()
        found.append(
            {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in loss.named_parameters()}
        )
    return found


def norm(gradient: dict[str, Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradient.values()]).norm())


def reference(gradients: list[dict[str, Tensor]], clip: float) -> dict[str, Tensor]:
    factors = [min(1.0, clip / norm(one)) for one in gradients]
    return {
        name: torch.stack([f * one[name] for f, one in zip(factors, gradients, strict=True)]).sum(dim=0)
        for name in gradients[0]
    }


def by_opacus(net: MultimodalNetwork, given: Batch) -> list[dict[str, Tensor]]:
    """The gradient of each window, by Opacus's hooks."""
    its: nn.Module = copy.deepcopy(net)
    for parent in list(its.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm):
                setattr(parent, name, FixedNorm(child))
    vars(its).pop("_every_module", None)
    its.train()  # Opacus records in this mode alone; nothing in the network depends on it now
    sampled = GradSampleModule(its, loss_reduction="sum")
    logits_BK = sampled(*(given.x[name] for name in net.names))
    functional.cross_entropy(logits_BK, given.y_B, reduction="sum").backward()
    each = {f"net.{name}": p.grad_sample for name, p in its.named_parameters()}
    return [{name: g[i].detach() for name, g in each.items()} for i in range(COUNT)]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("kind", ["cnn1d", "mlp"])
@pytest.mark.parametrize("share", [0.3, 1.0, 3.0])
def test_clipped_sums_are_those_of_opacus(kind: str, share: float) -> None:
    net = network(kind, modalities=2)
    given, loss = batch(net), WindowLoss(net, None)
    gradients = by_opacus(net, given)
    clip = share * float(np.median([norm(one) for one in gradients]))
    assert sum(norm(one) > clip for one in gradients) == {0.3: COUNT, 1.0: COUNT // 2, 3.0: 0}[share]
    made = clipped_sum(loss, trained(loss), given, clip)
    for name, want in reference(gradients, clip).items():
        torch.testing.assert_close(made[name], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_encoder_gives_the_gradients_of_a_backward_pass(kind: str) -> None:
    net = network(kind)
    given, loss = batch(net), WindowLoss(net, 8.0, torch.tensor([1.0, 2.0, 0.5]))
    gradients = by_backward(loss, given)
    clip = float(np.median([norm(one) for one in gradients]))
    made = clipped_sum(loss, trained(loss), given, clip)
    for name, want in reference(gradients, clip).items():
        torch.testing.assert_close(made[name], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_parts_of_a_batch_change_nothing(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    net = network("cnn1d")
    given, loss = batch(net), WindowLoss(net, 8.0)
    whole = clipped_sum(loss, trained(loss), given, 0.5)
    values = sum(one.numel() for one in loss.parameters())
    monkeypatch.setattr("models.privacy.local.private_training._VALUES", at_once * values)
    for name, one in clipped_sum(loss, trained(loss), given, 0.5).items():
        torch.testing.assert_close(one, whole[name], rtol=0, atol=1e-6)


def test_a_window_without_a_modality_moves_no_encoder_of_it() -> None:
    net = network("cnn1d", modalities=2)
    given = batch(net, [[True, False]] * COUNT)
    loss = WindowLoss(net, 8.0)
    made = clipped_sum(loss, trained(loss), given, 1.0)
    assert all(not g.any() for name, g in made.items() if name.startswith("net.encoders.two."))
    assert all(g.any() for name, g in made.items() if name.startswith(STEP))


def far_away(x: Tensor) -> Tensor:
    return x * 1e6


def not_finite(x: Tensor) -> Tensor:
    return torch.full_like(x, float("nan"))


@pytest.mark.parametrize("change", [far_away, not_finite])
def test_no_content_of_one_window_moves_the_sum_further_than_the_clip(
    change: Callable[[Tensor], Tensor],
) -> None:
    """And the others' part of it stays, as an account of single windows supposes."""
    net, clip = network("cnn1d"), 0.25
    given, loss = batch(net), WindowLoss(net, 8.0)
    others = Batch(
        {name: x_BCT[1:] for name, x_BCT in given.x.items()},
        given.present_BM[1:],
        given.y_B[1:],
        given.at_B[1:],
    )
    x = {name: torch.cat([change(x_BCT[:1]), x_BCT[1:]]) for name, x_BCT in given.x.items()}
    made = clipped_sum(loss, trained(loss), Batch(x, given.present_BM, given.y_B, given.at_B), clip)
    rest = clipped_sum(loss, trained(loss), others, clip)
    moved = {name: g - rest[name] for name, g in made.items()}
    assert norm(moved) <= clip * (1 + 1e-5)
    assert all(g.isfinite().all() for g in made.values())


def test_no_window_gives_zero() -> None:
    net = network("mlp")
    given, loss = batch(net), WindowLoss(net, 8.0)
    none = Batch({n: x[:0] for n, x in given.x.items()}, given.present_BM[:0], given.y_B[:0], given.at_B[:0])
    made = clipped_sum(loss, (f"{HEAD}fc1.weight",), none, 1.0)
    assert set(made) == {f"{HEAD}fc1.weight"}
    assert not made[f"{HEAD}fc1.weight"].any()
