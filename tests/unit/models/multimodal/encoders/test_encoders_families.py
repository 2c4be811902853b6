"""Every family of encoders: lengths, training, statistics, memory, and what it learns."""

import pytest
import torch

from models.multimodal.encoders.convolutions2d import Cnn2d, convolutions
from models.multimodal.encoders.registry import ENCODERS, make_encoder
from models.multimodal.encoders.steps import (
    BatchNorm,
    ModalityEncoder,
    Residual,
    in_parts,
    measure_norms,
    windows_at_once,
)
from models.multimodal.network import build, to_blobs
from models.training.training_choices import axes_of
from protocol.errors import Misconfigured
from protocol.tasks.kinds import KINDS
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality
from tests.support.kinds import KIND_OF, SMALL, kind_of, one_kind_task, task_of_kinds, windows_of

D = 8


def made(name: str) -> tuple[ModalityEncoder, Modality, int]:
    """The small encoder of that name, its modality, and T."""
    task = one_kind_task(kind_of(name), SMALL[name])
    modality = task.modalities[0]
    encoder = build(task).encoders[modality.name]
    assert isinstance(encoder, ModalityEncoder)
    return encoder, modality, task.samples(modality.name)


def test_every_kind_of_a_task_has_an_encoder_and_every_encoder_a_kind() -> None:
    assert {encoder for rules in KINDS.values() for encoder in rules.encoders} == set(ENCODERS)
    assert set(KIND_OF) == set(ENCODERS)
    assert {encoder.kind for encoder in SMALL.values()} == set(ENCODERS)


def test_an_encoder_of_another_release_is_refused_with_the_known_ones() -> None:
    unknown = Encoder.model_construct(kind="cnn3d", width=4, depth=1)
    with pytest.raises(Misconfigured, match=r"acc: .*no encoder 'cnn3d'.*cnn1d.*mel"):
        make_encoder(unknown, Modality(name="acc", channels=2, rate_hz=10), 16, D)


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_of_one_window_trains_all_of_an_encoder(name: str) -> None:
    encoder, modality, samples = made(name)
    encoder.train()(torch.randn(1, modality.channels, samples)).square().sum().backward()
    dead = [path for path, p in encoder.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not dead


@pytest.mark.parametrize("name", [name for name in SMALL if kind_of(name) in {"stream", "sound"}])
@pytest.mark.parametrize("share", [0.125, 0.5, 1.01, 2])
def test_encoders_of_samples_take_windows_from_an_eighth_to_twice_the_length(name: str, share: float) -> None:
    encoder, modality, samples = made(name)
    assert encoder.any_length
    z = encoder.eval()(torch.randn(3, modality.channels, round(share * samples)))
    assert z.shape == (3, D)
    assert z.isfinite().all()


@pytest.mark.parametrize("samples", [1, 3, 200, 2000, 48_000])
@pytest.mark.parametrize("kind", ["mel", "tcn", "transformer1d"])
def test_encoders_of_samples_are_made_for_any_length(kind: str, samples: int) -> None:
    modality = Modality(name="mic", kind="sound", channels=2, rate_hz=16_000)
    encoder = make_encoder(
        Encoder.model_validate({"kind": kind, "width": 4, "depth": 5}), modality, samples, D
    )
    assert encoder(torch.randn(2, 2, samples)).isfinite().all()


@pytest.mark.parametrize("size", [(1, 1), (1, 90), (3, 4), (28, 28), (96, 64)])
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_images_of_any_size_have_convolutions(size: tuple[int, int], depth: int) -> None:
    for residual in (False, True):
        encoder = Cnn2d(1, size, 4, depth, D, residual=residual).eval()
        assert encoder(torch.randn(2, 1, size[0] * size[1])).shape == (2, D)


def test_an_image_is_read_row_by_row() -> None:
    encoder = Cnn2d(1, (4, 6), 4, 1, D).eval()
    image = torch.randn(1, 1, 4, 6)
    by_hand = encoder.fc(encoder.convolutions(image).mean(dim=(2, 3)))
    assert torch.allclose(encoder(image.reshape(1, 1, 24)), by_hand)
    assert not torch.allclose(encoder(image.transpose(2, 3).reshape(1, 1, 24)), by_hand)


def test_axes_are_halved_until_four_are_left_and_pairs_have_a_connection() -> None:
    plain = convolutions(1, (28, 9), 4, 5, residual=False)
    assert [m.kernel_size for m in plain.layers if isinstance(m, torch.nn.MaxPool2d)] == [(2, 2), (2, 1)]
    pairs = convolutions(1, (28, 28), 4, 6, residual=True)
    assert [type(m).__name__ for m in pairs.layers if not isinstance(m, torch.nn.MaxPool2d)] == [
        "Conv2d", "BatchNorm", "ReLU", "Residual", "Residual", "Conv2d", "BatchNorm", "ReLU",
    ]  # fmt: skip
    assert pairs.channels == 16


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("count", [2, 40])
def test_measured_statistics_are_those_of_what_reaches_each_norm_at_inference(name: str, count: int) -> None:
    torch.manual_seed(0)
    encoder, modality, samples = made(name)
    encoder.train()
    x = torch.randn(count, modality.channels, samples) * 3 + torch.linspace(0, 2, count)[:, None, None]
    z = measure_norms(encoder, x)
    reached: dict[torch.nn.Module, torch.Tensor] = {}
    norms = [module for module in encoder.modules() if isinstance(module, BatchNorm)]
    assert norms
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, given: reached.update({module: given[0]}))
    with torch.no_grad():
        assert torch.allclose(encoder(x), z, atol=1e-4)
    for norm in norms:
        var, mean = torch.var_mean(reached[norm].transpose(0, 1).flatten(1), dim=1)
        assert torch.allclose(norm.running_mean, mean, rtol=1e-3, atol=1e-4)
        assert torch.allclose(norm.running_var, var, rtol=1e-3, atol=1e-4)
    assert not encoder.training


@pytest.mark.parametrize("name", SMALL)
def test_no_window_has_more_values_between_two_steps_than_an_encoder_says(name: str) -> None:
    encoder, modality, samples = made(name)
    largest = [modality.channels * samples]
    for module in encoder.modules():
        if not list(module.children()) and not isinstance(module, torch.nn.LSTM):
            module.register_forward_hook(lambda _m, _given, out: largest.append(out[0].numel()))
    with torch.no_grad():
        encoder.eval()(torch.randn(2, modality.channels, samples))
    assert max(largest) <= encoder.window_values


def test_large_images_go_through_an_encoder_in_small_parts_and_few_are_measured_on() -> None:
    encoder = Cnn2d(1, (128, 128), 256, 1, D)
    parts: list[int] = []
    encoder.convolutions[0].register_forward_hook(lambda _m, given, _out: parts.append(len(given[0])))
    x = torch.randn(6, 1, 128 * 128)
    z = measure_norms(encoder, x)
    assert parts[0] == 3, "4 of 4,194,304 values are 64 MB; of six windows every second is taken"
    assert parts[1:] == [1] * 6
    assert torch.equal(z, in_parts(encoder, x, 1))
    assert windows_at_once(torch.nn.Identity(), 128 * 128) == 4, (
        "what says nothing counts for 64 values a value"
    )


def test_a_residual_step_adds_what_went_in() -> None:
    step = Residual([torch.nn.Conv1d(2, 2, 1), BatchNorm(2)]).eval()
    x = torch.randn(3, 2, 5)
    assert torch.allclose(step(x), torch.relu(step.branch(x) + x))


def test_sensor_streams_of_three_channels_turn_with_the_housing_and_colours_do_not() -> None:
    assert axes_of(task_of_kinds(("stream", "image", "sound"))) == ("accelerometer",)


@pytest.mark.parametrize("name", SMALL)
def test_blobs_hold_what_an_encoder_learns_and_nothing_else(name: str) -> None:
    net = build(one_kind_task(kind_of(name), SMALL[name]))
    (blob,) = (tensors for part, tensors in to_blobs(net).items() if part.startswith("encoder/"))
    learnt = sum(p.numel() for p in net.encoders.parameters())
    measured = sum(
        m.running_mean.numel() + m.running_var.numel() for m in net.modules() if isinstance(m, BatchNorm)
    )
    assert sum(x.size for x in blob.values()) == learnt + measured


@pytest.mark.parametrize("name", SMALL)
def test_plain_sgd_at_the_papers_rate_learns_from_each_kind(name: str) -> None:
    torch.manual_seed(0)
    task = one_kind_task(kind_of(name), SMALL[name])
    windows = windows_of(task, seed=1, count=30)
    net = build(task)
    x, y = torch.from_numpy(windows.x[task.modalities[0].name]), torch.from_numpy(windows.y_B)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.08 * p.grad)
    assert loss < 0.8, "chance is 1.10"
