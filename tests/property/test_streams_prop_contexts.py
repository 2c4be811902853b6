"""Contexts, over random streams: gaps, chunks, rates, and sensors that fall behind."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contract import WindowSet
from models.data import window_set
from models.data.streams.batches import SampleBatch
from models.data.streams.grid import before_s
from models.data.streams.tracks.track import Track
from models.data.streams.windows import Windower, Windows
from protocol.tasks.task import Modality, Task, Window

SECONDS = 12.0


def task_of(context_s: float | None, stride_s: float) -> Task:
    return Task(
        name="t",
        labels=("a", "b"),
        modalities=(
            Modality(name="acc", channels=2, rate_hz=20),
            Modality(name="gyr", channels=1, rate_hz=7.3),
        ),
        window=Window(length_s=1.5, stride_s=stride_s, max_gap_s=0.2, context_s=context_s),
    )


@st.composite
def streams(draw: st.DrawFn) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Times with gaps, and values, of both sensors."""
    found = {}
    for name, rate, channels in (("acc", 23.0, 2), ("gyr", 7.3, 1)):
        t = np.arange(1, int(SECONDS * rate)) / rate
        for _ in range(draw(st.integers(0, 2))):
            begin, length = draw(st.floats(0, SECONDS)), draw(st.floats(0.05, 3))
            t = t[(t < begin) | (t > begin + length)]
        found[name] = t, np.random.default_rng(draw(st.integers(0, 99))).normal(size=(len(t), channels))
    return found


def fed(
    task: Task, data: dict[str, tuple[np.ndarray, np.ndarray]], cuts: list[float], behind_s: float
) -> list[tuple[int, Windows]]:
    """What each poll gave, and which poll it was; the second sensor comes so much later than the first."""
    windower, found = Windower(task, lateness_s=1.0), []
    edges = [-np.inf, *sorted(cuts), np.inf]
    for k, (begin, end) in enumerate(pairwise(edges)):
        now = min(end, SECONDS)
        for name, late in (("acc", 0.0), ("gyr", behind_s)):
            t, values = data[name]
            part = (t + late >= begin) & (t + late < end)
            windower.feed(SampleBatch(name, t[part], values[part].astype(np.float32)), now)
        while (windows := windower.poll(now)) is not None:
            found.append((k, windows))
    while (windows := windower.flush()) is not None:
        found.append((len(edges), windows))
    return found


def points_by_hand(task: Task, name: str, track: Track, start: float) -> int:
    """Counted one by one from the window's beginning back."""
    modality, count = task.modality(name), task.samples(name)
    for k in range(1, task.context_samples(name) - task.samples(name) + 1):
        _, covered_BT = track.resample(np.array([[start - k / modality.rate_hz]]))
        if not covered_BT[0, 0]:
            break
        count += 1
    return count


@settings(max_examples=40, deadline=None)
@given(
    data=streams(),
    cuts=st.lists(st.floats(0, SECONDS), max_size=8),
    behind_s=st.sampled_from([0.0, 0.6, 2.5]),
    context_s=st.sampled_from([1.5, 1.61, 3.0, 7.7]),
    stride_s=st.sampled_from([0.4, 1.5, 2.2]),
)
def test_contexts_change_no_window_and_no_time_of_closing_and_are_what_was_seen(
    data, cuts, behind_s, context_s, stride_s
):
    task = task_of(context_s, stride_s)
    plain, kept = (fed(one, data, cuts, behind_s) for one in (task_of(None, stride_s), task))
    assert [(k, len(w)) for k, w in plain] == [(k, len(w)) for k, w in kept]
    tracks = {}
    for name, (t, values) in data.items():
        tracks[name] = Track(task.modality(name), task.window.max_gap_s)
        tracks[name].add(t, values.astype(np.float32), SECONDS, 0.0)
    for (_, bare), (_, windows) in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(bare.start_B, windows.start_B)
        np.testing.assert_array_equal(bare.present_BM, windows.present_BM)
        assert windows.context is not None
        for m, name in enumerate(task.modality_names):
            np.testing.assert_array_equal(bare.x[name], windows.x[name])
            for b, start in enumerate(windows.start_B):
                points = int(windows.context.points_BM[b, m])
                x_CL = windows.context.x[name][b]
                assert points == 0 or points >= task.samples(name)
                assert not x_CL[:, : x_CL.shape[1] - points].any()
                if points and behind_s == 0:  # a late sensor may lack what came after its window was cut
                    assert points == points_by_hand(task, name, tracks[name], start)
                if points:
                    rate = task.modality(name).rate_hz
                    grid = start + np.arange(task.samples(name) - points, task.samples(name)) / rate
                    wide, covered = tracks[name].resample(grid[None])
                    before = points - task.samples(name)
                    assert covered[0, :before].all() or behind_s > 0
                    if behind_s == 0:
                        length = x_CL.shape[1]
                        seen = x_CL[:, length - points : length - task.samples(name)]
                        np.testing.assert_array_equal(seen, wide[0][:, :before])
        ones = np.ones_like(windows.present_BM, np.float32)
        whole = WindowSet(windows.x, windows.present_BM, ones, windows.y_B, context=windows.context)
        window_set.check(whole, task)


@settings(max_examples=30, deadline=None)
@given(data=streams(), context_s=st.sampled_from([1.5, 3.0, 7.7]), step=st.sampled_from([0.3, 1.0]))
def test_what_is_remembered_is_bounded(data, context_s, step):
    task = task_of(context_s, 0.4)
    windower = Windower(task, lateness_s=1.0)
    for begin in np.arange(0, SECONDS, step):
        for name, (t, values) in data.items():
            part = (t >= begin) & (t < begin + step)
            windower.feed(SampleBatch(name, t[part], values[part].astype(np.float32)), begin)
        while windower.poll(begin) is not None:
            pass
        for name, track in windower._tracks.items():
            t = track.arrays()[0]
            first = windower._start() - before_s(task, name) - track.gap_s
            assert (t < first).sum() <= 1, "one left neighbour"
