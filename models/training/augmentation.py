"""Random changes of training windows (``modalities.augment``), by the kind of the modality. Imports torch.

Shapes: B windows, C channels, T samples or pixels, H rows, W columns.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from protocol.tasks.kinds import Augment
from protocol.tasks.task import Modality, Task

_QUIETEST_DB: Final = 40.0
"""Noise is drawn evenly in decibels, from so far below its largest deviation."""
Change = Callable[[Tensor, torch.Generator], Tensor]


def augmenters(task: Task) -> dict[str, Change]:
    """The change of each modality that has an ``augment``: of ``x_BCT`` in its raw unit, with a generator."""
    return {
        one.name: partial(augmented, one, one.augment) for one in task.modalities if one.augment is not None
    }


def apply(
    changes: Mapping[str, Change], x: Mapping[str, Tensor], here: Mapping[str, Tensor], rng: torch.Generator
) -> dict[str, Tensor]:
    """A batch after its changes; windows that lack a modality stay as they are.

    Args:
        changes: of :func:`augmenters`.
        x: ``x_BCT`` by modality.
        here: bool by modality, (B,): which windows have it.
        rng: generator of random numbers.
    """
    out = dict(x)
    for name, change in changes.items():
        out[name] = torch.where(here[name][:, None, None], change(out[name], rng), out[name])
    return out


def augmented(modality: Modality, by: Augment, x_BCT: Tensor, rng: torch.Generator) -> Tensor:
    """Windows of a modality, each changed by itself. ``x_BCT`` is not changed in place."""
    if modality.height and modality.width:
        x_BCT = _image(torch.unflatten(x_BCT, 2, (modality.height, modality.width)), by, modality.offset, rng)
    else:
        x_BCT = _in_time(x_BCT, by, modality, rng)
    if by.gain_db:
        x_BCT = x_BCT * 10 ** (by.gain_db / 20 * _around_0(len(x_BCT), rng))[:, None, None]
    if by.noise:
        below_db = _QUIETEST_DB * torch.rand(len(x_BCT), 1, 1, generator=rng)
        deviation_B11 = modality.scale * by.noise * 10 ** (-below_db / 20)
        x_BCT = x_BCT + deviation_B11 * torch.randn(x_BCT.shape, generator=rng)
    return x_BCT


def _around_0(count: int, rng: torch.Generator) -> Tensor:
    """Even in -1 to 1."""
    return 2 * torch.rand(count, generator=rng) - 1


def _in_time(x_BCT: Tensor, by: Augment, modality: Modality, rng: torch.Generator) -> Tensor:
    count, _, samples = x_BCT.shape
    if by.shift or by.speed:
        x_BCT = _moved(x_BCT, by, modality, rng)
    if by.bands:
        x_BCT = _without_a_band(x_BCT, by.bands, modality.rate_hz, rng)
    if by.mask:
        masked_BT = _stretch(count, samples, by.mask, rng)
        x_BCT = x_BCT.masked_fill(masked_BT[:, None], modality.offset)
    return x_BCT


def _moved(x_BCT: Tensor, by: Augment, modality: Modality, rng: torch.Generator) -> Tensor:
    """Shifted in time, and played faster or slower; linear between samples.

    Beyond its ends a sound is silent, and a stream stays at its first or last value.
    """
    count, channels, samples = x_BCT.shape
    shift_B1 = (by.shift * samples * _around_0(count, rng)).round()[:, None]
    rate_B1 = 1 + by.speed * _around_0(count, rng)[:, None]
    middle = (samples - 1) / 2
    at_BT = (torch.arange(samples) - middle) * rate_B1 + middle - shift_B1
    inside_BT = at_BT.clamp(0, samples - 1)
    before_BT = inside_BT.floor()
    part_B1T = (inside_BT - before_BT)[:, None]
    index_BCT = before_BT.long()[:, None].expand(-1, channels, -1)
    x_BCT = torch.lerp(
        x_BCT.gather(2, index_BCT), x_BCT.gather(2, (index_BCT + 1).clamp(max=samples - 1)), part_B1T
    )
    if modality.kind == "sound":
        x_BCT = x_BCT.masked_fill((at_BT != inside_BT)[:, None], modality.offset)
    return x_BCT


def _without_a_band(x_BCT: Tensor, share: float, rate_hz: float, rng: torch.Generator) -> Tensor:
    """Without the frequencies of one random band, up to that share of the mel scale."""
    frequencies = x_BCT.shape[2] // 2 + 1
    mel_F = torch.log1p(torch.linspace(0, rate_hz / 2 / 700, frequencies))
    stopped_BF = _span(len(x_BCT), mel_F / max(float(mel_F[-1]), 1e-9), share, rng)
    spectrum_BCF = torch.fft.rfft(x_BCT).masked_fill(stopped_BF[:, None], 0)
    left_BCT: Tensor = torch.fft.irfft(spectrum_BCF, n=x_BCT.shape[2])
    return left_BCT


def _stretch(count: int, length: int, share: float, rng: torch.Generator) -> Tensor:
    """A random stretch of an axis in each window: bool (B, length)."""
    return _span(count, (torch.arange(length) + 0.5) / length, share, rng)


def _span(count: int, at_N: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Which places, from 0 to 1, are in a random span of up to that share: bool (B, N)."""
    width_B1, begin_B1 = torch.rand(2, count, 1, generator=rng)
    width_B1 = share * width_B1
    begin_B1 = begin_B1 * (1 - width_B1)
    inside_BN: Tensor = (at_N >= begin_B1) & (at_N < begin_B1 + width_B1)
    return inside_BN


def _image(x_BCHW: Tensor, by: Augment, offset: float, rng: torch.Generator) -> Tensor:
    """Shifted, turned, zoomed and mirrored, with the nearest pixel beyond the edges; one rectangle masked."""
    count, _, height, width = x_BCHW.shape
    if by.shift or by.rotate_deg or by.zoom or by.flip:
        across_B, down_B = (2 * by.shift * _around_0(count, rng) for _ in range(2))
        angle_B = math.radians(by.rotate_deg) * _around_0(count, rng)
        zoom_B = 1 + by.zoom * _around_0(count, rng)
        side_B = torch.where(torch.rand(count, generator=rng) < by.flip / 2, -1.0, 1.0)
        cos_B, sin_B = angle_B.cos() / zoom_B, angle_B.sin() / zoom_B
        rows = (
            torch.stack([side_B * cos_B, -side_B * sin_B * (height / width), across_B], dim=1),
            torch.stack([sin_B * (width / height), cos_B, down_B], dim=1),
        )
        grid_BHW2 = functional.affine_grid(torch.stack(rows, dim=1), [*x_BCHW.shape], align_corners=False)
        x_BCHW = functional.grid_sample(x_BCHW, grid_BHW2, padding_mode="border", align_corners=False)
    if by.mask:
        rows_BH1 = _stretch(count, height, by.mask, rng)[:, :, None]
        columns_B1W = _stretch(count, width, by.mask, rng)[:, None]
        x_BCHW = x_BCHW.masked_fill((rows_BH1 & columns_B1W)[:, None], offset)
    return x_BCHW.flatten(2)
