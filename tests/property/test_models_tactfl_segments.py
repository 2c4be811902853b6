"""Segments of any rate and length lie where the stream is, and the contrast of any of them is a loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.methods.tactfl import losses, segments
from models.methods.tactfl.batch import StreamBatch

RATES = st.floats(0.2, 400)
SHARES = st.floats(0.125, 1)
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=100, deadline=None)
@given(
    rate_hz=RATES,
    length_s=st.floats(0.1, 4),
    before=st.integers(0, 300),
    share=SHARES,
    where=st.sampled_from(["random", "ends"]),
    seed=SEEDS,
)
def test_segments_are_cut_from_what_is_there_and_say_when_that_was(
    *, rate_hz, length_s, before, share, where, seed
):
    samples, generator = max(1, round(length_s * rate_hz)), torch.Generator().manual_seed(seed)
    points_B = samples + torch.randint(0, before + 1, (5,), generator=generator)
    at_BL = torch.arange(samples + before).repeat(5, 1).to(torch.float64)
    gone_BL = at_BL < (samples + before - points_B)[:, None]
    stream = StreamBatch(at_BL.masked_fill(gone_BL, torch.nan)[:, None], points_B, samples, rate_hz)
    start_BG = segments.starts(stream.back_s(), length_s, share, where, generator)
    made = segments.cut(stream, start_BG, share)
    assert made.x_SCN.shape == (10, 1, segments.points(samples, share))
    assert not bool(made.x_SCN.isnan().any())
    assert bool((made.x_SCN.diff(dim=2) == 1).all())
    begin_S, end_S = made.span_S2.T
    torch.testing.assert_close(begin_S * rate_hz, made.x_SCN[:, 0, 0] - before, atol=1e-6, rtol=1e-9)
    torch.testing.assert_close(end_S * rate_hz, made.x_SCN[:, 0, -1] + 1 - before, atol=1e-6, rtol=1e-9)


def spans(count: int, generator: torch.Generator) -> torch.Tensor:
    start_S = torch.rand(count, generator=generator, dtype=torch.float64)
    length_S = 0.05 + torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.stack([start_S, start_S + length_S], dim=1)


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(2, 12),
    dim=st.integers(1, 6),
    temperature=st.floats(0.02, 5),
    itself=st.booleans(),
    seed=SEEDS,
)
def test_the_loss_is_never_below_the_entropy_of_its_targets_and_knows_no_order(
    count, dim, temperature, itself, seed
):
    generator = torch.Generator().manual_seed(seed)
    span_S2, window_S = spans(count, generator), torch.randint(0, 3, (count,), generator=generator)
    span_R2 = span_S2 if itself else spans(count, generator)
    z_SD, z_RD = (torch.randn(count, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    z_RD = z_SD if itself else z_RD
    apart_SR = torch.eye(count, dtype=torch.bool) & itself
    tiou_SR = losses.overlaps(span_S2, span_R2, window_S, window_S)
    assert bool(((tiou_SR >= 0) & (tiou_SR <= 1 + 1e-12)).all())
    assert bool((tiou_SR[window_S[:, None] != window_S] == 0).all())
    cos_SR = losses.cosines(z_SD, z_RD)
    loss = float(losses.symmetric(cos_SR, tiou_SR, temperature, apart_SR))
    least = []
    for targets_SR in (tiou_SR.masked_fill(apart_SR, 0), tiou_SR.masked_fill(apart_SR, 0).T):
        p_SR = losses.soft_targets(targets_SR)
        rows_S = targets_SR.any(dim=1)
        torch.testing.assert_close(p_SR.sum(dim=1), rows_S.to(torch.float64))
        least.append(float(torch.special.entr(p_SR).sum() / rows_S.sum().clamp(min=1)))
    assert loss >= sum(least) / 2 - 1e-9
    order = torch.randperm(count, generator=generator)
    shuffled = losses.symmetric(
        cos_SR[order][:, order], tiou_SR[order][:, order], temperature, apart_SR[order][:, order]
    )
    assert float(shuffled) == pytest.approx(loss, rel=1e-9, abs=1e-9)
