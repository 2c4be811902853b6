"""Stacked copies of a network compute what each network computes alone."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.multimodal.network import MultimodalNetwork, build
from models.multimodal.stacked import StackedNetwork, stacking_trouble
from models.training import local
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

COPIES, WINDOWS = 3, 12


def task_of(encoder: Encoder, modality: Modality | None = None) -> Task:
    own = modality or Modality(name="a", channels=3, rate_hz=20.0, offset=0.5, scale=2.0)
    return Task(
        name="toy",
        labels=("low", "middle", "high"),
        modalities=(own,),
        window=Window(length_s=1.0, stride_s=0.5),
        network=Network(encoders={own.name: encoder}, feature_dim=6, hidden_dim=10),
    )


def step(net: MultimodalNetwork, x: torch.Tensor, y: torch.Tensor) -> None:
    net.train()
    sgd = local.Sgd(net.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        sgd.descend(functional.cross_entropy(net.classify({"a": net.encode("a", x)}), y))
    net.eval()


CASES = {
    "cnn1d, channels in multiples of eight": task_of(Encoder(kind="cnn1d", width=8, depth=3)),
    "cnn1d, other channels": task_of(Encoder(kind="cnn1d", width=6, depth=2)),
    "cnn1d, odd lengths": task_of(
        Encoder(kind="cnn1d", width=8, depth=2), Modality(name="a", channels=2, rate_hz=37.0)
    ),
    "tcn": task_of(Encoder(kind="tcn", width=8, depth=2)),
    "tcn, strided": task_of(
        Encoder(kind="tcn", width=5, depth=1), Modality(name="a", channels=1, rate_hz=600.0)
    ),
    "mlp": task_of(
        Encoder(kind="mlp", width=9, depth=2), Modality(name="a", kind="vector", channels=6, rate_hz=1.0)
    ),
    "cnn2d, residual": task_of(
        Encoder(kind="cnn2d", width=4, depth=3, residual=True),
        Modality(name="a", kind="image", channels=3, rate_hz=1.0, height=10, width=8),
    ),
}


@pytest.mark.parametrize("task", CASES.values(), ids=CASES)
def test_networks_stacked_copies_train_as_each_alone(task: Task) -> None:
    torch.manual_seed(1)
    net = build(task)
    assert not stacking_trouble(net)
    modality = task.modalities[0]
    x_GBCT = torch.randn(COPIES, WINDOWS, modality.channels, task.samples("a"))
    y_GB = torch.randint(0, 3, (COPIES, WINDOWS))
    stacked = StackedNetwork(net, COPIES)
    sgd = local.Sgd(stacked.parameters, 0.1, momentum=0.9)
    x_BGCT = x_GBCT.transpose(0, 1).contiguous()
    for _ in range(3):
        logits_GBK = stacked.classify({"a": stacked.encode("a", x_BGCT)})
        sgd.descend(functional.cross_entropy(logits_GBK.flatten(0, 1), y_GB.flatten()) * COPIES)
    trained = {name: array.copy() for name, array in stacked.arrays().items()}
    features_GBD, measured_GBD = stacked.features("a", x_BGCT), stacked.measure_norms("a", x_BGCT)
    for g in range(COPIES):
        alone = copy.deepcopy(net)
        step(alone, x_GBCT[g], y_GB[g])
        for name, tensor in alone.sent.items():
            np.testing.assert_allclose(
                trained[name][g], tensor.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )
        torch.testing.assert_close(features_GBD[g], alone.features("a", x_GBCT[g]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(measured_GBD[g], alone.measure_norms("a", x_GBCT[g]), rtol=1e-4, atol=1e-5)
        for name, tensor in alone.sent.items():
            np.testing.assert_allclose(
                stacked.arrays()[name][g], tensor.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_networks_stacked_copies_do_not_mix() -> None:
    """What one copy sees changes no bit of another."""
    torch.manual_seed(2)
    net = build(CASES["cnn1d, channels in multiples of eight"])
    x_BGCT = torch.randn(WINDOWS, COPIES, 3, 20)
    other_BGCT = x_BGCT.clone()
    other_BGCT[:, 1] = float("nan")
    found = [StackedNetwork(net, COPIES).encode("a", x) for x in (x_BGCT, other_BGCT)]
    assert torch.equal(found[0][[0, 2]], found[1][[0, 2]])
    assert bool(found[1][1].isnan().all())


@pytest.mark.parametrize(
    ("encoder", "modality", "step"),
    [
        (Encoder(kind="lstm", width=4, depth=1), None, "mean_hidden"),
        (Encoder(kind="transformer1d", width=4, depth=1), None, "tokens"),
        (
            Encoder(kind="mel", width=4, depth=1, bands=8),
            Modality(name="a", kind="sound", channels=1, rate_hz=8000.0),
            "LogMel",
        ),
    ],
)
def test_networks_an_encoder_that_cannot_be_stacked_is_named(
    encoder: Encoder, modality: Modality | None, step: str
) -> None:
    trouble = stacking_trouble(build(task_of(encoder, modality)))
    assert "modality 'a'" in trouble
    assert step in trouble


def test_networks_equal_samples_pool_as_torch_does() -> None:
    """The slope goes to the first of two equal samples."""
    net = build(CASES["cnn1d, channels in multiples of eight"])
    flat_BGCT = torch.ones(WINDOWS, 1, 3, 20)
    stacked, y_B = StackedNetwork(net, 1), torch.zeros(WINDOWS, dtype=torch.int64)
    logits_BK = stacked.classify({"a": stacked.encode("a", flat_BGCT)})[0]
    torch.autograd.backward(functional.cross_entropy(logits_BK, y_B))
    net.train()
    logits_BK = net.classify({"a": net.encode("a", flat_BGCT[:, 0])})
    torch.autograd.backward(functional.cross_entropy(logits_BK, y_B))
    first = next(name for name in net.sent if "convolutions.0.weight" in name)
    slopes = dict(zip((n for n, t in net.sent.items() if t.requires_grad), stacked.parameters, strict=True))
    slope_G = slopes[first].grad
    assert slope_G is not None
    torch.testing.assert_close(slope_G[0], net.sent[first].grad, rtol=1e-4, atol=1e-6)
