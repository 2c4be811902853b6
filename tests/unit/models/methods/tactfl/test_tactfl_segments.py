"""Where segments lie in windows and contexts of any rate, and what is cut there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import Context
from models.methods.tactfl import segments
from models.methods.tactfl.batch import StreamBatch, Streams
from models.methods.tactfl.losses import overlaps
from tests.support.methods.tactfl_cases import task, windows, with_context


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clock(count: int, length: int, samples: int, rate_hz: float, points: int | None = None) -> StreamBatch:
    """A stream whose one channel holds the time of each point, from the start of the window."""
    t_L = (torch.arange(length) - (length - samples)) / rate_hz
    return StreamBatch(t_L.repeat(count, 1, 1), torch.full((count,), points or length), samples, rate_hz)


@pytest.mark.parametrize(
    ("samples", "share", "count"), [(128, 0.8, 102), (3, 0.5, 2), (1, 0.125, 1), (5, 1, 5)]
)
def test_a_segment_has_its_share_of_the_samples_and_one_at_least(samples, share, count):
    assert segments.points(samples, share) == count


@pytest.mark.parametrize("where", ["random", "ends"])
def test_what_is_cut_is_what_its_span_says_at_any_rate(where):
    start_BG = segments.starts(torch.zeros(50, dtype=torch.float64), 2.0, 0.7, where, chance())
    for rate_hz in (1.0, 3.7, 50.0, 100.0):
        samples = max(1, round(2.0 * rate_hz))
        made = segments.cut(clock(50, samples, samples, rate_hz), start_BG, 0.7)
        begin_S, end_S = made.span_S2.T
        torch.testing.assert_close(made.x_SCN[:, 0, 0].double(), begin_S, atol=1e-6, rtol=0)
        torch.testing.assert_close(made.x_SCN[:, 0, -1].double() + 1 / rate_hz, end_S, atol=1e-6, rtol=0)
        assert bool((begin_S >= 0).all())
        assert bool((end_S <= samples / rate_hz + 1e-9).all())
        # the nearest points of the grid: within half a period of what was asked, or at the window's end
        late_S = (begin_S - start_BG.T.reshape(-1)).abs()
        assert bool(((late_S <= 0.5 / rate_hz + 1e-9) | (end_S >= samples / rate_hz - 1e-9)).all())


def test_ends_are_the_first_and_the_last_share_of_the_window():
    start_BG = segments.starts(torch.zeros(2, dtype=torch.float64), 2.0, 0.75, "ends", chance())
    made = segments.cut(clock(2, 100, 100, 50.0), start_BG, 0.75)
    assert made.span_S2.tolist() == [[0, 1.5]] * 2 + [[0.5, 2.0]] * 2
    assert made.window_S.tolist() == [0, 1, 0, 1]


def test_random_ones_lie_anywhere_in_the_window_and_differ_from_draw_to_draw():
    start_BG = segments.starts(torch.zeros(4000, dtype=torch.float64), 1.0, 0.6, "random", chance())
    assert 0 <= float(start_BG.min()) < 0.001
    assert 0.399 < float(start_BG.max()) <= 0.4
    assert abs(float(start_BG.mean()) - 0.2) < 0.01
    assert abs(float(torch.corrcoef(start_BG.T)[0, 1])) < 0.05


def test_the_two_rates_of_one_segment_cover_nearly_the_same_time():
    start_BG = segments.starts(torch.zeros(200, dtype=torch.float64), 2.56, 0.8, "random", chance())
    fast, slow = (
        segments.cut(clock(200, n, n, rate), start_BG, 0.8) for n, rate in ((128, 50.0), (41, 16.0))
    )
    tiou_SR = overlaps(fast.span_S2, slow.span_S2, fast.window_S, slow.window_S)
    assert float(tiou_SR.diagonal().min()) > 0.95


def test_contexts_give_segments_of_the_stream_before_the_window_as_close_to_each_other_as_in_a_window():
    stream = clock(3000, 500, 100, 50.0)
    start_BG = segments.starts(stream.back_s(), 2.0, 0.8, "random", chance())
    made = segments.cut(stream, start_BG, 0.8)
    torch.testing.assert_close(made.x_SCN[:, 0, 0].double(), made.span_S2[:, 0], atol=1e-6, rtol=0)
    assert -8 <= float(made.span_S2[:, 0].min()) < -7.9
    assert 1.9 < float(made.span_S2[:, 1].max()) <= 2.0 + 1e-9
    apart_B = (made.span_S2[:3000, 0] - made.span_S2[3000:, 0]).abs()
    assert float(apart_B.max()) <= 0.4 + 1e-9


@pytest.mark.parametrize(("one_hz", "other_hz"), [(50.0, 50.0), (20.0, 20.0), (50.0, 100.0)])
def test_where_one_segment_ends_and_the_next_begins_they_share_nothing(one_hz, other_hz):
    """Wherever in the stretch of stream: a last bit of rounding would make a counterpart of a neighbour."""
    one, other = (clock(41, round(6 * hz), round(2 * hz), hz) for hz in (one_hz, other_hz))
    start_B = -4 + torch.arange(41, dtype=torch.float64) / 10
    start_BG = torch.stack([start_B, start_B + 1], dim=1)
    first, second = (segments.cut(stream, start_BG, 0.5) for stream in (one, other))
    tiou_SR = overlaps(first.span_S2, second.span_S2, first.window_S, second.window_S)
    assert tiou_SR.diagonal().tolist() == [1.0] * 82
    assert tiou_SR[:41, 41:].diagonal().tolist() == [0.0] * 41


def test_nothing_is_cut_from_beyond_a_gap():
    stream = clock(2, 500, 100, 50.0)
    stream = replace(stream, points_B=torch.tensor([100, 150]))
    for seed in range(20):
        start_BG = segments.starts(stream.back_s(), 2.0, 0.5, "random", chance(seed))
        begin_S = segments.cut(stream, start_BG, 0.5).span_S2[:, 0]
        assert bool((begin_S[[0, 2]] >= 0).all())
        assert bool((begin_S[[1, 3]] >= -1).all())


def test_the_stretch_is_what_all_modalities_of_a_window_have():
    t = task(context_s=3.0)
    plain = windows(t, 3)
    points_BM = np.array([[48, 96], [32, 96], [0, 64]])
    present_BM = np.array([[True, True], [True, True], [False, True]])
    context = Context({n: np.zeros((3, 2, p), np.float32) for n, p in (("acc", 48), ("mic", 96))}, points_BM)
    given = replace(plain, present_BM=present_BM, context=context)
    streams = Streams.of(t, given, ("acc", "mic"), use_context=True)
    assert streams.back_s().tolist() == [-2, -1, -1]
    assert Streams.of(t, given, ("acc",), use_context=True).back_s().tolist() == [-2, -1, 0]
    assert Streams.of(t, given, ("acc", "mic"), use_context=False).back_s().tolist() == [0, 0, 0]


def test_the_windows_are_the_ends_of_their_contexts():
    t = task(context_s=3.0)
    plain = windows(t, 5)
    streams = Streams.of(t, with_context(t, plain), ("acc", "mic"), use_context=True).at(torch.tensor([3, 1]))
    for name in t.modality_names:
        assert streams.each[name].x_BCL.shape[2] == t.context_samples(name)
        np.testing.assert_array_equal(streams.windows(name).numpy(), plain.x[name][[3, 1]])
