import numpy as np
import pytest
import torch

from models.multimodal.encoders.convolutions1d import Cnn1d, poolings_of, widths_of
from models.multimodal.encoders.recurrent import Lstm
from models.multimodal.encoders.registry import make_encoder
from models.multimodal.encoders.steps import BatchNorm, measure_norms
from models.multimodal.network import (
    MultimodalNetwork,
    build,
    load_blobs,
    to_blobs,
    two_branch_task,
)
from models.training import local
from protocol.errors import Refused
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window


def small_task(samples: int = 16) -> Task:
    return Task(
        name="small",
        labels=("a", "b", "c"),
        modalities=(
            Modality(name="acc", channels=3, rate_hz=10, offset=1.0, scale=2.0),
            Modality(name="gyro", channels=2, rate_hz=10),
        ),
        window=Window(length_s=samples / 10),
        network=Network(
            encoders={"gyro": Encoder(kind="lstm", width=6, depth=2)}, feature_dim=8, hidden_dim=5
        ),
    )


def made(kind: str, samples: int) -> torch.nn.Module:
    encoder = Encoder.model_validate({"kind": kind, "width": 4, "depth": 3})
    return make_encoder(encoder, Modality(name="acc", channels=2, rate_hz=10), samples, 7)


def test_reference_network_has_exactly_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in build(two_branch_task()).parameters()) == 223_622


def test_channel_growth_and_pooling_follow_the_written_rules() -> None:
    assert widths_of(32, 5) == (32, 32, 64, 64, 64)
    assert widths_of(4, 7) == (4, 4, 8, 8, 8, 16, 16)
    assert [poolings_of(t, 5) for t in (1, 8, 16, 31, 32, 128, 1024)] == [0, 0, 1, 1, 2, 4, 5]


@pytest.mark.parametrize("kind", ["cnn1d", "lstm"])
@pytest.mark.parametrize("samples", [1, 16, 100, 1024])
def test_encoders_take_every_window_length(kind: str, samples: int) -> None:
    encoder = made(kind, samples)
    z = encoder(torch.randn(3, 2, samples))
    assert z.shape == (3, 7)
    assert z.isfinite().all()


@pytest.mark.parametrize("encoder", [Cnn1d(2, 1, 4, 2, 5), Lstm(2, 8, 4, 1, 5)], ids=["cnn1d", "lstm"])
def test_a_batch_of_one_window_trains(encoder: torch.nn.Module) -> None:
    z = encoder.train()(torch.randn(1, 2, 1))
    z.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("shape", [(9, 4), (9, 4, 7), (2, 4, 1)])
def test_batch_norm_is_torchs_to_the_bit(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(4), torch.nn.BatchNorm1d(4, momentum=0.3)
    for _ in range(3):
        x = 2 + 3 * torch.randn(shape)
        given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        out = [norm(one) for norm, one in zip((ours, theirs), given, strict=True)]
        for z in out:
            z.square().sum().backward()
        assert torch.equal(*out)
        assert torch.equal(given[0].grad, given[1].grad)
    assert torch.equal(ours.running_var, theirs.running_var)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    theirs.momentum = 1.0
    theirs.train()(x)
    ours.measure(x)
    assert torch.equal(ours.running_mean, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)


def test_all_parts_of_a_network_follow_its_mode() -> None:
    net = build(small_task())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    assert all(module.training for module in net.train().modules())


def test_a_network_is_read_and_written_where_an_optimizer_has_moved_its_parameters() -> None:
    net, other = build(small_task()), build(small_task())
    load_blobs(net, to_blobs(other))
    adam = local.Adam(net.parameters(), 0.1)
    adam.descend(net(torch.randn(9, 3, 16), torch.randn(9, 2, 16)).square().mean())
    assert np.array_equal(to_blobs(net)["head"]["head/fc2.bias"], net.head.fc2.bias.detach().numpy())
    assert not np.array_equal(net.head.fc2.bias.detach().numpy(), other.head.fc2.bias.detach().numpy())
    load_blobs(net, to_blobs(other))
    assert torch.equal(net.head.fc2.bias, other.head.fc2.bias)


def test_four_batches_of_one_round_move_the_statistics_most_of_the_way() -> None:
    encoder = Lstm(2, 8, 4, 1, 5).train()
    for _ in range(4):
        encoder(10 + torch.randn(64, 2, 8))
    assert encoder.norm_in.running_mean.min() > 7


@pytest.mark.parametrize("kind", ["cnn1d", "lstm"])
@pytest.mark.parametrize("count", [2, 300, 1500])
def test_measured_statistics_are_those_of_what_reaches_each_norm_at_inference(kind: str, count: int) -> None:
    torch.manual_seed(0)
    encoder = made(kind, 16).train()
    x = torch.randn(count, 2, 16) * 3 + torch.linspace(0, 9, count)[:, None, None]
    z = measure_norms(encoder, x)
    reached = {}
    norms = [module for module in encoder.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, given: reached.update({module: given[0]}))
    assert torch.allclose(encoder(x), z, atol=1e-5)
    for norm in norms:
        var, mean = torch.var_mean(reached[norm].transpose(0, 1).flatten(1), dim=1)
        close = 1e-4 if count <= 1024 else 0.1  # of more windows, every second is measured
        assert torch.allclose(norm.running_mean, mean, rtol=close, atol=close)
        assert torch.allclose(norm.running_var, var, rtol=close)
    assert not encoder.training


def test_a_single_value_has_no_statistics_to_measure() -> None:
    encoder = Lstm(2, 8, 4, 1, 5)
    before = encoder.norm_out.running_var.clone()
    measure_norms(encoder, torch.randn(1, 2, 8))
    assert torch.equal(encoder.norm_out.running_var, before)
    assert not torch.equal(encoder.norm_in.running_var, torch.ones(2))


def test_plain_sgd_at_the_papers_rate_leaves_chance() -> None:
    # Two classes differ in frequency only; without BatchNorm the loss stays at log 2 = .69.
    torch.manual_seed(0)
    phase, t = 6.3 * torch.rand(64, 2, 1), torch.arange(32.0)
    y = torch.arange(64) % 2
    x = torch.sin(t * (0.5 + 0.8 * y)[:, None, None] + phase)
    for encoder in (Cnn1d(2, 32, 8, 3, 2), Lstm(2, 32, 16, 1, 2)):
        for _ in range(60):
            loss = torch.nn.functional.cross_entropy(encoder(x), y)
            encoder.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in encoder.parameters():
                    p.sub_(0.08 * p.grad)
        assert loss < 0.2, type(encoder).__name__


def test_raw_units_are_normalised_inside() -> None:
    net = build(small_task()).eval()
    x = torch.randn(4, 3, 16)
    bare = net.encoders["acc"](x)
    assert torch.allclose(net.encode("acc", x * 2.0 + 1.0), bare, atol=1e-5)


def test_head_sees_features_in_the_tasks_order() -> None:
    net = build(small_task()).eval()
    z = {"acc": torch.randn(2, 8), "gyro": torch.randn(2, 8)}
    turned = dict(reversed(z.items()))
    assert torch.equal(net.classify(z), net.classify(turned))
    assert torch.equal(net.classify(z), net.head([z["acc"], z["gyro"]]))


def test_blobs_carry_everything_that_the_outputs_depend_on() -> None:
    torch.manual_seed(1)
    net = build(small_task())
    x = torch.randn(9, 3, 16), torch.randn(9, 2, 16)
    net(*x)  # moves BatchNorm's statistics
    blobs = to_blobs(net)
    assert set(blobs) == {"encoder/acc", "encoder/gyro", "head"}
    names = [name for tensors in blobs.values() for name in tensors]
    assert "encoder/gyro/lstm.weight_hh_l1" in names
    assert "encoder/acc/convolutions.1.running_var" in names
    assert not any("num_batches" in name for name in names)
    assert all(a.dtype == np.float32 for tensors in blobs.values() for a in tensors.values())
    other = build(small_task())
    load_blobs(other, blobs | {"prototypes/acc": {"prototypes/acc/values": np.zeros((3, 8), np.float32)}})
    assert torch.equal(net.eval()(*x), other.eval()(*x))


def test_blobs_are_copies() -> None:
    net = build(small_task())
    before = to_blobs(net)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    load_blobs(net, before)
    assert np.array_equal(to_blobs(net)["head"]["head/fc1.bias"], before["head"]["head/fc1.bias"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda b: b["head"].update({"head/fc1.bias": np.zeros(4, np.float32)}),
            r"head/fc1.bias.*\(5,\).*\(4,\)",
        ),
        (lambda b: b["head"].pop("head/fc2.bias"), "head/fc2.bias.*nothing"),
        (lambda b: b["head"].update({"head/fc9.bias": np.zeros(4, np.float32)}), "head/fc9.bias"),
        (lambda b: b.pop("encoder/acc"), "encoder/acc"),
    ],
)
def test_wrong_tensors_are_named(change, words) -> None:
    blobs = to_blobs(build(small_task()))
    change(blobs)
    with pytest.raises(Refused, match=words):
        load_blobs(build(small_task()), blobs)


def test_a_device_may_lack_an_encoder_but_not_half_of_one() -> None:
    net: MultimodalNetwork = build(small_task())
    blobs = to_blobs(net)
    del blobs["encoder/gyro"]
    load_blobs(net, blobs, partial=True)
    del blobs["encoder/acc"]["encoder/acc/fc.bias"]
    with pytest.raises(Refused, match=r"encoder/acc/fc\.bias"):
        load_blobs(net, blobs, partial=True)
