"""What the windower remembers of the stream before a window."""

import numpy as np
import pytest

from edge_agent.windows.window_sets import windows_of_recording
from models.contract import Context, WindowSet
from models.data.streams import windows as module
from models.data.streams.batches import SampleBatch
from models.data.streams.recording import Recording, Stream
from models.data.streams.windows import Windower, Windows
from models.data.window_set import check
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.data import motion, toy_recording, toy_task
from tests.unit.edge_agent.windows.test_agent_windows import drain, samples, starts

TASK = toy_task(window=Window(length_s=2.56, stride_s=1.28, context_s=5.12))
PLAIN = toy_task()


def context_of(windows: WindowSet | Windows) -> Context:
    assert windows.context is not None
    return windows.context


def without(stream: Stream, *gaps: tuple[float, float]) -> Stream:
    keep = np.ones(len(stream.t), np.bool_)
    for begin, end in gaps:
        keep &= (stream.t < begin) | (stream.t >= end)
    return Stream(stream.t[keep], stream.values[keep])


def ramp(seconds: float, rate: float) -> Stream:
    t = np.arange(round(seconds * rate)) / rate
    return Stream(t, np.stack([t, -t, 2 * t], 1).astype(np.float32))


def test_a_context_is_the_stream_up_to_the_windows_end():
    windows = windows_of_recording(TASK, Recording({"acc": ramp(20, 100)}))
    context = context_of(windows)
    assert context.x["acc"].shape[1:] == (3, 256)
    for b in range(2, 13):
        grid = b * 1.28 - 2.56 + np.arange(256) / 50
        np.testing.assert_allclose(context.x["acc"][b, 2], 2 * grid, atol=1e-4)
    np.testing.assert_array_equal(context.x["acc"][..., -128:], windows.x["acc"])
    assert not context.x["gyr"].any(), "a device without it"
    assert not context.points_BM[:, 1].any()
    check(windows, TASK)


def test_it_grows_from_the_first_window_to_its_whole_length():
    context = context_of(windows_of_recording(TASK, toy_recording(20)))
    assert context.points_BM[:5].tolist() == [[128, 64], [192, 96], [256, 128], [256, 128], [256, 128]]
    assert not context.x["acc"][0, :, :128].any(), "nothing was recorded yet"


def test_it_ends_at_a_gap_and_a_short_gap_is_none():
    acc, gyr = motion(20, 50, 3), motion(20, 25, 2)
    recording = Recording({"acc": without(acc, (5.0, 5.5)), "gyr": without(gyr, (5.0, 5.1))})
    windows = windows_of_recording(TASK, recording)
    context, b = context_of(windows), 5  # 6.4 s to 8.96 s; the context would begin at 3.84 s
    whole = context_of(windows_of_recording(TASK, Recording({"acc": acc, "gyr": gyr})))
    known = round((6.4 - 5.5) * 50)
    assert context.points_BM[b].tolist() == [128 + known, 128], "a gap of two samples is bridged"
    assert not context.x["acc"][b, :, : 128 - known].any(), "what is beyond the gap is left out"
    ends = (one.x["acc"][b, :, -128 - known :] for one in (context, whole))
    np.testing.assert_allclose(*ends, atol=1e-6)
    check(windows, TASK)


def test_a_modality_that_is_missing_from_a_window_has_no_context_there():
    recording = Recording({"acc": motion(20, 50, 3), "gyr": without(motion(20, 25, 2), (7.0, 12.0))})
    windows = windows_of_recording(TASK, recording)
    context = context_of(windows)
    gone = ~windows.present_BM[:, 1]
    assert 2 <= gone.sum() < len(windows)
    assert not context.points_BM[gone, 1].any()
    assert not context.x["gyr"][gone].any()
    assert (context.points_BM[~gone, 1] >= 64).all()
    assert (context.points_BM[2:, 0] == 256).all(), "the other sensor remembers on"


def test_a_clock_set_back_forgets_what_was_before():
    windower = Windower(TASK, ("acc",))
    windower.feed(samples("acc", 1000, 1010, 50, 3), 0.0)
    drain(windower, 0.0)
    windower.feed(samples("acc", 5, 15, 50, 3), 1.0)
    after = [w for w in drain(windower, 1.0) if w.start_B[0] < 1000]
    first = context_of(after[0])
    assert starts(after)[:2] == [5.12, 6.4]
    assert first.points_BM[:2, 0].tolist() == [128 + 6, 192 + 6], "from 5 s on, by the new clock"


def test_windows_of_a_task_that_keeps_them_alone_have_none():
    assert windows_of_recording(PLAIN, toy_recording(10)).context is None
    only = toy_task(window=Window(length_s=2.56, stride_s=1.28, context_s=2.56))
    windows = windows_of_recording(only, toy_recording(10))
    np.testing.assert_array_equal(context_of(windows).x["acc"], windows.x["acc"])


def test_what_is_remembered_is_bounded_by_the_context():
    windower = Windower(TASK, ("acc",))
    for k in range(300):
        windower.feed(samples("acc", k, k + 1, 50, 3), float(k))
        drain(windower, float(k))
        held = len(windower._tracks["acc"].arrays()[0])
        assert held <= 50 * (5.12 + 1.28 + 1) + 15, "the context, a stride, what just came, and a gap"


def test_a_sensor_slower_than_its_window_keeps_whole_contexts():
    task = Task(
        name="slow",
        labels=("a", "b"),
        modalities=(Modality(name="cpu", channels=1, rate_hz=0.9),),
        window=Window(length_s=1.6, stride_s=0.7, max_gap_s=0.2, context_s=6.2),
    )
    t = np.arange(40) / 0.9
    windower = Windower(task)
    for at in t:
        windower.feed(SampleBatch("cpu", np.array([at]), np.array([[at]], np.float32)), float(at))
        for windows in drain(windower, float(at)):
            context = context_of(windows)
            late = windows.start_B > 6.2
            assert (context.points_BM[late, 0] == task.context_samples("cpu")).all()


def test_a_task_that_comes_to_want_contexts_gets_them_from_then_on():
    windower = Windower(PLAIN, ("acc",))
    windower.feed(samples("acc", 0, 10, 50, 3), 0.0)
    assert {w.context for w in drain(windower, 0.0)} == {None}
    assert windower.differs(TASK, ("acc",))
    windower.use(TASK, ("acc",))
    assert not windower.differs(TASK, ("acc",))
    windower.feed(samples("acc", 10, 20, 50, 3), 1.0)
    points = np.concatenate([context_of(w).points_BM[:, 0] for w in drain(windower, 1.0)])
    assert points[0] < 256, "what was forgotten before does not come back"
    assert (points[3:] == 256).all()
    windower.use(PLAIN, ("acc",))
    windower.feed(samples("acc", 20, 30, 50, 3), 2.0)
    assert {w.context for w in drain(windower, 2.0)} == {None}


@pytest.mark.parametrize("values", [1, 5000, 1 << 24])
def test_long_contexts_come_in_smaller_batches_and_none_is_lost(monkeypatch, values):
    monkeypatch.setattr(module, "MAX_VALUES", values)
    windower = Windower(TASK)
    for name, stream in toy_recording(60).streams.items():
        windower.feed(SampleBatch(name, stream.t, stream.values), 0.0)
    found = drain(windower, 0.0)
    assert starts(found) == pytest.approx([k * 1.28 for k in range(45)])
    most = max(1, values // (256 * 3 + 128 * 2))
    assert max(map(len, found)) == min(most, 45)


def test_samples_between_windows_that_do_not_touch_are_not_late_and_belong_to_contexts():
    task = toy_task(window=Window(length_s=1.0, stride_s=3.0, context_s=4.0))
    windower, found = Windower(task, ("acc",)), []
    for k in range(13):
        windower.feed(samples("acc", k, k + 1, 50, 3), float(k))
        found += drain(windower, float(k))
    assert starts(found) == [0, 3, 6, 9, 12]
    assert windower.counters.late == 0
    points = np.concatenate([context_of(w).points_BM[:, 0] for w in found])
    assert points.tolist() == [50, 200, 200, 200, 200]
