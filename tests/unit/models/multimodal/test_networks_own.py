"""Encoders and networks of packages: they learn as built-in ones do, and what cannot be used is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import packages
from models.contract import ClientContext
from models.multimodal import own_parts
from models.multimodal.encoders.convolutions1d import Cnn1d
from models.multimodal.network import build, load_blobs, to_blobs
from models.registry import method
from models.tensors import flatten
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder, Network, Package
from protocol.tasks.task import Modality, Task, Window
from tests.support.methods.contract_cases import windows_of

PACKAGE = Package(name="radar", version="1", sha256="0" * 64)
TASK = Task(
    name="own",
    labels=("rest", "slow", "fast"),
    modalities=(
        Modality(name="acc", channels=3, rate_hz=32, offset=1.0, scale=2.0),
        Modality(name="mic", channels=2, rate_hz=32),
    ),
    window=Window(length_s=1, stride_s=0.5),
    network=Network(
        encoders={"acc": Encoder(width=4, depth=2), "mic": Encoder(width=4, depth=2)},
        feature_dim=8,
        hidden_dim=8,
    ),
)


def own(kind: str = "own:mine", **options: Any) -> Task:
    encoders = {
        name: Encoder.model_validate({"kind": kind, "width": 4, "depth": 2, "options": options})
        for name in TASK.modality_names
    }
    network = TASK.network.model_copy(update={"encoders": encoders})
    return TASK.model_copy(update={"network": network, "packages": (PACKAGE,)})


def whole(**options: Any) -> Task:
    network = Network(kind="own:mine", feature_dim=8, hidden_dim=8, options=options)
    return TASK.model_copy(update={"network": network, "packages": (PACKAGE,)})


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Replaces what a package offers; how it is found and checked is in test_models_packages."""
    own_parts._CHECKED.clear()
    return lambda thing: monkeypatch.setattr(packages, "load", lambda _task, _group, _kind: thing)


def torchs_norms(module: nn.Module) -> nn.Module:
    """The module with torch's BatchNorm in the place of ours."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d):
                setattr(parent, name, nn.BatchNorm1d(child.num_features))
    return module


class Plain(nn.Module):
    """An encoder as a user writes it: no base of ours, torch's norms."""

    def __init__(self, inner: Cnn1d) -> None:
        super().__init__()
        self.convolutions, self.fc = torchs_norms(inner.convolutions), inner.fc

    def forward(self, x_BCT: torch.Tensor) -> torch.Tensor:
        z_BD: torch.Tensor = self.fc(self.convolutions(x_BCT).mean(dim=2))
        return z_BD


def copy_of_cnn1d(*, modality: Modality, samples: int, feature_dim: int, width: int, depth: int) -> nn.Module:
    return Plain(Cnn1d(modality.channels, samples, width, depth, feature_dim))


def test_a_copy_of_a_built_in_encoder_learns_to_the_bit_what_that_one_learns(offered) -> None:
    """Its norms, which are torch's, are replaced, measured and sent as those of ours."""
    offered(copy_of_cnn1d)
    made = {}
    for task in (TASK, own()):
        client, windows = method(task.method).client(), windows_of(task, seed=1, count=48)
        state = client.initial(task, 3)
        for round_ in (1, 2):
            result = client.train(ClientContext(task, "d", round_, 5), windows, state, {})
            state = {
                blob: {n: x + result.tensors[n] if n in result.tensors else x for n, x in tensors.items()}
                for blob, tensors in state.items()
            }
        values = flatten(state) | result.tensors
        made[bool(task.packages)] = (
            {name.replace("/own.", "/"): x.tobytes() for name, x in values.items()},
            client.evaluate(task, windows, state).metrics,
        )
    assert made[False] == made[True]


def test_a_whole_network_learns_is_sent_and_comes_back(offered) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 3)

        def forward(self, z: list[torch.Tensor]) -> torch.Tensor:
            logits: torch.Tensor = self.out(torch.stack(z).mean(dim=0))
            return logits

    def make(*, task: Task, extra: int = 0) -> tuple[dict[str, nn.Module], nn.Module]:
        assert extra == 1
        encoders = {
            m.name: copy_of_cnn1d(modality=m, samples=32, feature_dim=8, width=4, depth=1)
            for m in task.modalities
        }
        return encoders, Mean()

    offered(make)
    task = whole(extra=1)
    client, windows = method(task.method).client(), windows_of(task, seed=1, count=48)
    state = client.initial(task, 3)
    assert set(state["head"]) == {"head/out.weight", "head/out.bias"}
    before = client.evaluate(task, windows, state).metrics["loss"]
    for round_ in range(1, 5):
        result = client.train(ClientContext(task, "d", round_, 5), windows, state, {})
        state = {
            blob: {n: x + result.tensors[n] if n in result.tensors else x for n, x in tensors.items()}
            for blob, tensors in state.items()
        }
    assert client.evaluate(task, windows, state).metrics["loss"] < before
    net = build(task)
    load_blobs(net, state)
    assert all(np.array_equal(x, state["head"][name]) for name, x in to_blobs(net)["head"].items())


def simple(forward: Callable[[Any, Any], Any] | None = None, **parts: Any) -> Callable[..., nn.Module]:
    """Makes encoders of these parts; the feature is what ``forward`` makes of it."""

    class Made(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.fc = nn.Linear(channels, 8)
            for name, part in parts.items():
                if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                    self.register_buffer(name, part)
                else:
                    setattr(self, name, part)

        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x.mean(dim=2)) if forward is None else forward(self, x)

    return lambda *, modality, **_: Made(modality.channels)


SHARED = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (7, r"network\.encoders\.acc: 'own:mine' is a int, not a function"),
        (lambda: None, r"encoders\.acc: 'own:mine' failed: TypeError.*unexpected keyword argument"),
        (lambda **_: 7, "made a int, not a torch.nn.Module"),
        (lambda **_: 1 / 0, "failed: ZeroDivisionError"),
        (simple(lambda _, x: x.mean(dim=2)), r"makes \(2, 3\) torch\.float32 of 2 windows, not \(2, 8\)"),
        (simple(lambda own, x: own.fc(x.mean(dim=2)).double()), r"torch\.float64 of 2 windows"),
        (simple(lambda _, __: None), "makes a NoneType of 2 windows"),
        (simple(lambda own, x: own.nothing(x)), "fails on windows of the task: AttributeError"),
        (simple(steps=torch.zeros(1, dtype=torch.int64)), r"steps is torch\.int64.*persistent=False"),
        (simple(norm=nn.BatchNorm1d(4, track_running_stats=False)), "without running statistics"),
        (simple(norm=nn.SyncBatchNorm(4)), r"SyncBatchNorm is no BatchNorm that can be measured"),
        (simple(norm=nn.InstanceNorm1d(4, track_running_stats=True)), "InstanceNorm1d is no BatchNorm"),
        (simple(one=SHARED, other=SHARED), "two names share a parameter"),
    ],
)
def test_what_cannot_be_an_encoder_is_refused_with_the_key(offered, make, words) -> None:
    offered(make)
    with pytest.raises(Misconfigured, match=words):
        build(own())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda **_: 7, r"network\.kind: 'own:mine' made a int, not \(encoders by modality, head\)"),
        (lambda **_: ({}, nn.Linear(8, 3)), "made encoders of \\[\\], not of each modality"),
        (
            lambda **_: (
                {m.name: simple()(modality=m) for m in TASK.modalities},
                nn.Sequential(nn.Flatten(), nn.Linear(8, 3)),
            ),
            r"network\.kind, head: it fails on windows of the task",
        ),
    ],
)
def test_what_cannot_be_a_network_is_refused_with_the_key(offered, make, words) -> None:
    offered(make)
    with pytest.raises(Misconfigured, match=words):
        build(whole())


def test_a_norm_in_a_head_is_refused(offered) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, z: list[torch.Tensor]) -> Any:
            return self.out(self.norm(z[0]))

    offered(lambda *, task: ({m.name: simple()(modality=m) for m in task.modalities}, Normed()))
    with pytest.raises(Misconfigured, match="a BatchNorm in a head is not measured"):
        build(whole())


def test_norms_anywhere_inside_are_measured_as_a_window_meets_them_at_inference(offered) -> None:
    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv1d(channels, 4, 3, padding=1), nn.BatchNorm1d(4)
            self.second, self.fc = nn.BatchNorm2d(4), nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.first(x)
            x = x + torch.relu(self.norm(x))
            return self.fc(self.second(x[..., None]).mean(dim=(2, 3)))

    offered(lambda *, modality, **_: Residual(modality.channels))
    net = build(own())
    x = torch.randn(700, 3, 32, generator=torch.Generator().manual_seed(0))
    z = net.measure_norms("acc", x)
    assert torch.equal(z, net.features("acc", x)), "what it returns is what inference makes"
    inner: Any = net.encoders["acc"]
    assert isinstance(inner, own_parts.OwnEncoder)
    own_one: Any = inner.own
    first, norm = own_one.first((x - 1.0) / 2.0), own_one.norm
    torch.testing.assert_close(norm.running_mean, first.mean(dim=(0, 2)), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(norm.running_var, first.var(dim=(0, 2)), atol=1e-3, rtol=1e-3)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_an_import_changes_no_value_of_version_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> Any:
        torch.randn(3)
        return copy_of_cnn1d

    monkeypatch.setattr(packages, "load", lambda *_: copy_of_cnn1d)
    torch.manual_seed(0)
    quiet = flatten(to_blobs(build(own())))
    monkeypatch.setattr(packages, "load", load)
    torch.manual_seed(0)
    assert all(np.array_equal(x, quiet[name]) for name, x in flatten(to_blobs(build(own()))).items())


@pytest.mark.parametrize("task", [own(), whole()], ids=["encoders", "network"])
def test_a_method_without_a_place_for_such_a_part_refuses_it(task) -> None:
    spec = method("disentafl")
    with pytest.raises(Misconfigured, match=r"'disentafl': network.* no place for such a part"):
        spec.configure(task.model_copy(update={"method": spec.name}))


def test_a_method_that_cuts_windows_refuses_an_encoder_of_one_length_at_version_0(offered) -> None:
    task, client = own().model_copy(update={"method": "tactfl"}), method("tactfl").client()
    offered(copy_of_cnn1d)
    with pytest.raises(Misconfigured, match=r"segments of windows, and network\.encoders\.acc takes whole"):
        client.initial(task, 3)

    def of_any_length(**arguments: Any) -> nn.Module:
        made = copy_of_cnn1d(**arguments)
        vars(made)["any_length"] = True
        return made

    offered(of_any_length)
    assert set(client.initial(task, 3)) == {"encoder/acc", "encoder/mic", "head"}
