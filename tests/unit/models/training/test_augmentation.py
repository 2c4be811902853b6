"""Augmentation by kind: what it changes, by how much at most, and what it leaves alone."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from models import registry
from models.methods.qqr.client import make_client
from models.training.augmentation import apply, augmented, augmenters
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality
from tests.support.kinds import one_kind_task, windows_of
from tests.support.methods.qqr_cases import train

RATE_HZ = 1000


def sound(**augment: Any) -> Modality:
    return Modality.model_validate(
        {"name": "a", "kind": "sound", "channels": 2, "rate_hz": RATE_HZ, "scale": 10.0, "augment": augment}
    )


def stream(**augment: Any) -> Modality:
    return sound(**augment).model_copy(update={"kind": "stream"})


def image(height: int = 16, width: int = 24, **augment: Any) -> Modality:
    size = {"channels": 1, "height": height, "width": width, "rate_hz": 1, "offset": 7.0}
    return Modality.model_validate({"name": "a", "kind": "image", **size, "augment": augment})


def changed(modality: Modality, x_BCT: Tensor, seed: int = 0) -> Tensor:
    assert modality.augment is not None
    before = x_BCT.clone()
    out = augmented(modality, modality.augment, x_BCT, torch.Generator().manual_seed(seed))
    assert torch.equal(x_BCT, before), "the device's windows are changed in place"
    assert (out.shape, out.dtype) == (x_BCT.shape, torch.float32)
    return out


def tone(hz: float, windows: int, samples: int = 500) -> Tensor:
    wave_T = torch.sin(2 * torch.pi * hz * torch.arange(samples) / RATE_HZ)
    return wave_T.expand(windows, 2, samples).clone()


@pytest.mark.parametrize("modality", [sound(), stream(), image()], ids=lambda one: one.kind)
def test_a_table_of_zeros_changes_nothing(modality: Any) -> None:
    x_BCT = torch.randn(3, modality.channels, modality.points if modality.framed else 40)
    assert torch.equal(changed(modality, x_BCT), x_BCT)


def test_a_shift_moves_each_window_by_whole_samples_within_its_share() -> None:
    x_BCT = torch.zeros(200, 2, 40)
    x_BCT[:, :, 20] = 1
    at_B = changed(sound(shift=0.25), x_BCT)[:, 0].argmax(dim=1)
    assert (int(at_B.min()), int(at_B.max())) == (10, 30)
    assert torch.equal(changed(sound(shift=0.25), x_BCT).sum(dim=(1, 2)), torch.full((200,), 2.0))


def test_beyond_its_ends_a_sound_is_silent_and_a_stream_holds_its_value() -> None:
    x_BCT = torch.full((50, 2, 40), 3.0)
    assert {*changed(sound(shift=0.4), x_BCT).flatten().tolist()} == {0.0, 3.0}
    assert torch.equal(changed(stream(shift=0.4), x_BCT), x_BCT)


def test_speed_moves_a_tone_within_its_share() -> None:
    spectrum_BF = torch.fft.rfft(changed(stream(speed=0.2), tone(100, 100))[:, 0]).abs()
    hz_B = spectrum_BF.argmax(dim=1) * RATE_HZ / 500
    assert 78 <= hz_B.min() < 90
    assert 110 < hz_B.max() <= 122


def test_gain_is_even_in_decibels_within_its_bound() -> None:
    factor_B = changed(sound(gain_db=6), torch.ones(400, 2, 10))[:, 0, 0]
    db_B = 20 * factor_B.log10()
    assert -6 <= db_B.min() < -5.5
    assert 5.5 < db_B.max() <= 6
    assert abs(db_B.mean()) < 0.5


def test_noise_is_at_most_its_deviation_in_units_of_scale_and_forty_decibels_below_at_least() -> None:
    deviation_B = changed(sound(noise=0.5), torch.zeros(200, 2, 400)).flatten(1).std(dim=1)
    assert 0.045 < deviation_B.min() < 0.1
    assert 4 < deviation_B.max() < 5.3


def test_a_band_is_taken_out_and_the_rest_stays() -> None:
    x_BCT = torch.randn(100, 2, 400)
    before, after = (torch.fft.rfft(x).abs()[:, 0] for x in (x_BCT, changed(sound(bands=0.5), x_BCT)))
    gone_BF = after < 1e-3
    assert torch.allclose(after[~gone_BF], before[~gone_BF], atol=1e-3)
    mel_F = torch.log1p(torch.arange(201) * 2.5 / 700) / np.log1p(500 / 700)
    for gone_F in gone_BF[gone_BF.any(dim=1)]:
        low, high = mel_F[gone_F].min(), mel_F[gone_F].max()
        assert high - low <= 0.5
        assert gone_F[(mel_F > low) & (mel_F < high)].all(), "one band"


def test_a_mask_is_one_stretch_or_one_rectangle_of_the_offset() -> None:
    masked_BT = changed(sound(mask=0.3), torch.ones(100, 2, 100))[:, 0] == 0
    assert 25 < masked_BT.sum(dim=1).max() <= 31
    assert (masked_BT.int().diff(dim=1) == 1).sum(dim=1).max() <= 1
    masked_BHW = torch.unflatten((changed(image(mask=0.5), torch.ones(100, 1, 16 * 24)) == 7), 2, (16, 24))[
        :, 0
    ]
    rows_BH, columns_BW = masked_BHW.any(dim=2), masked_BHW.any(dim=1)
    assert torch.equal(masked_BHW, rows_BH[:, :, None] & columns_BW[:, None])
    assert 4 < rows_BH.sum(dim=1).max() <= 8
    assert 8 < columns_BW.sum(dim=1).max() <= 12


def test_half_of_the_images_are_mirrored_and_nothing_else_happens_to_them() -> None:
    x_BCT = torch.rand(200, 1, 16 * 24)
    mirrored = torch.unflatten(x_BCT, 2, (16, 24)).flip(-1).flatten(2)
    out = changed(image(flip=True), x_BCT)
    same_B, turned_B = (torch.isclose(out, one, atol=1e-5).all(dim=2)[:, 0] for one in (x_BCT, mirrored))
    assert bool((same_B ^ turned_B).all())
    assert 70 < turned_B.sum() < 130


def test_an_image_is_turned_about_its_middle_and_not_stretched() -> None:
    row_H, column_W = torch.meshgrid(torch.arange(32) - 15.5, torch.arange(48) - 23.5, indexing="ij")
    disc = (row_H.square() + column_W.square() < 80).float().reshape(1, 1, -1).repeat(20, 1, 1)
    turned = changed(image(32, 48, rotate_deg=180), disc)
    assert (turned - disc).abs().flatten(1).mean(dim=1).max() < 0.02
    corner = torch.zeros(20, 1, 32, 48)
    corner[:, :, :8, 23:25] = 1
    angles = torch.unflatten(changed(image(32, 48, rotate_deg=90), corner.flatten(2)), 2, (32, 48))[:, 0]
    assert (angles[:, :8, 23:25].mean(dim=(1, 2)) < 0.5).any()


def test_shift_and_zoom_of_an_image_stay_within_their_shares() -> None:
    x_BCHW = torch.zeros(200, 1, 40, 60)
    x_BCHW[:, :, 18:22, 27:33] = 1
    moved = torch.unflatten(changed(image(40, 60, shift=0.1), x_BCHW.flatten(2)), 2, (40, 60))[:, 0]
    mass_B = moved.sum(dim=(1, 2))
    down_B = (moved.sum(dim=2) * torch.arange(40)).sum(dim=1) / mass_B - 19.5
    across_B = (moved.sum(dim=1) * torch.arange(60)).sum(dim=1) / mass_B - 29.5
    assert 3.5 < down_B.abs().max() < 4.1
    assert 5.5 < across_B.abs().max() < 6.1
    zoomed_B = changed(image(40, 60, zoom=0.3), x_BCHW.flatten(2)).sum(dim=(1, 2)) / 24
    assert 0.45 < zoomed_B.min() < 0.65
    assert 1.4 < zoomed_B.max() < 1.8


def test_windows_without_the_modality_stay_as_they_are() -> None:
    task = one_kind_task("sound").model_copy(update={"modalities": (sound(noise=1.0, gain_db=6),)})
    x = {"a": torch.zeros(4, 2, 30)}
    here_B = torch.tensor([True, False, True, False])
    out = apply(augmenters(task), x, {"a": here_B}, torch.Generator().manual_seed(0))["a"]
    assert out.flatten(1).any(dim=1).tolist() == here_B.tolist()


@pytest.mark.parametrize("kind", ["sound", "image", "stream", "vector"])
def test_qqr_trains_on_changed_windows_the_same_ones_for_the_same_seed(kind: str) -> None:
    plain = one_kind_task(kind)
    (modality,) = plain.modalities
    loud = modality.model_validate({**modality.model_dump(), "augment": {"gain_db": 12, "noise": 0.3}})
    task = plain.model_copy(update={"modalities": (loud,)})
    windows, state = windows_of(task, 1, 24), make_client().initial(task, 0)
    first, again, without = (train(one, windows, state).tensors for one in (task, task, plain))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], without[name]) for name in first)


@pytest.mark.parametrize(
    ("modality", "words"),
    [
        (
            {"kind": "image", "height": 8, "width": 8, "augment": {"speed": 0.1}},
            "augment.speed: not for this",
        ),
        ({"augment": {"flip": True}}, "kind 'stream': augment.flip: not for this kind .it has shift, speed"),
        ({"kind": "text", "augment": {"noise": 0.1}}, "augment.noise: not for this kind .it has none"),
    ],
)
def test_a_key_of_another_kind_is_refused_with_those_that_fit(modality: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Modality.model_validate({"name": "a", "channels": 1, "rate_hz": 5, **modality})


@pytest.mark.parametrize("method", ["tactfl", "disentafl"])
def test_a_method_without_augmentation_refuses_the_table(method: str) -> None:
    task = one_kind_task("sound").model_copy(update={"method": method, "modalities": (sound(shift=0.1),)})
    with pytest.raises(Misconfigured, match="modality 'a': this method has no augment; leave that table out"):
        registry.method(method).configure(task)


def test_a_task_without_a_table_is_written_as_before() -> None:
    plain = Modality(name="a", channels=1, rate_hz=5)
    assert "augment" not in plain.model_dump()
    assert "augment" in sound(shift=0.1).model_dump()
