"""Positions of a window's two segments, and cutting them from the stream. Imports torch.

Shapes: B windows, G = 2 segments of each, S = G * B segments (all first ones, then all second ones), C
channels, L points of a stretch, N points of a segment.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from models.methods.tactfl.batch import StreamBatch

_COUNT: Final = 2


@dataclass(frozen=True)
class Segments:
    """One modality's segments of a batch.

    Attributes:
        x_SCN: in the modality's unit; of no meaning if the window lacks the modality.
        span_S2: float64, start and end, in seconds from the window's start: of the points used.
        window_S: int64, each segment's window (place in the batch).
        here_S: bool; whether the window has the modality.
    """

    x_SCN: Tensor
    span_S2: Tensor
    window_S: Tensor
    here_S: Tensor


def points(samples: int, share: float) -> int:
    """N for a window of this many samples: the share of it, rounded, and at least one."""
    return max(1, round(share * samples))


def starts(
    back_B: Tensor,
    length_s: float,
    share: float,
    where: Literal["random", "ends"],
    generator: torch.Generator,
) -> Tensor:
    """``start_BG`` float64, in seconds from each window's start: the starts of its two segments.

    A window's length is placed at random in the stretch of stream, and the segments lie within it: so they
    overlap as they do without a context.

    Args:
        back_B: the start of the stretch, in seconds from the window's start; 0: there is only the window.
        length_s: of a window.
        share: w, a segment's part of it.
        where: ``random``, each anywhere in that length; ``ends``, the first and the last w of it.
        generator: random source.
    """
    room_s = (1 - share) * length_s
    base_B = back_B * torch.rand(len(back_B), generator=generator, dtype=torch.float64)
    if where == "ends":
        within_BG = torch.tensor([0.0, room_s], dtype=torch.float64).expand(len(back_B), _COUNT)
    else:
        within_BG = room_s * torch.rand(len(back_B), _COUNT, generator=generator, dtype=torch.float64)
    return base_B[:, None] + within_BG


def cut(stream: StreamBatch, start_BG: Tensor, share: float) -> Segments:
    """The segments of one modality that begin at these times, at the nearest points of its grid.

    Args:
        stream: of B windows.
        start_BG: of :func:`starts`; segments that cross the end of the stretch are moved into it.
        share: w.
    """
    count, length = points(stream.samples, share), stream.x_BCL.shape[2]
    low_B1 = (length - stream.points_B.clamp(min=stream.samples))[:, None]
    nearest_BG = torch.round(start_BG * stream.rate_hz).to(torch.int64) + stream.first
    first_S = torch.minimum(torch.maximum(nearest_BG, low_B1), torch.tensor(length - count)).T.reshape(-1)
    window_S = torch.arange(len(start_BG)).repeat(_COUNT)
    at_SN = first_S[:, None] + torch.arange(count)
    # each end from its own point: a sum of start and length differs from the next start in the last bit
    ends_S2 = torch.stack([first_S, first_S + count], dim=1) - stream.first
    return Segments(
        x_SCN=stream.x_BCL[window_S[:, None], :, at_SN].transpose(1, 2),
        span_S2=ends_S2.to(torch.float64) / stream.rate_hz,
        window_S=window_S,
        here_S=(stream.points_B > 0)[window_S],
    )
