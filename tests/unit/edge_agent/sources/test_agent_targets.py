"""Labels of further targets, from recordings and sources to windows."""

import asyncio

import numpy as np
import pytest

from edge_agent.sources import LabelBatch, SampleBatch
from edge_agent.sources.registry import open_source
from edge_agent.windows.window_sets import windows_of_recording
from models.data.labels.labels import TargetTrack
from models.data.labels.rules import MAX_CHANGES, Labels
from models.data.streams.recording import Recording, Stream, read, write_npz
from models.data.streams.windows import MAX_STRANGE, Windower
from models.data.window_set import check
from protocol.errors import Misconfigured
from protocol.tasks.task import Target, Task
from runtime.clock import SystemClock
from tests.support.agent.data import motion, toy_recording, toy_task, write_toy

NAN = float("nan")
SPEED = Target(name="speed", kind="regression", unit="m/s")
SIDE = Target(name="side", labels=("left", "right"))
MADE = Target(name="turn", kind="generation", modality="gyr")


def task_of(**changes: object) -> Task:
    return toy_task(**{"method": "disentafl", "targets": (SPEED, SIDE, MADE), **changes})


def track(*pairs: tuple[float, float]) -> TargetTrack:
    t, values = np.array(pairs, np.float64).T
    return TargetTrack(t, values)


def recording(seconds: float = 30.0, **targets: TargetTrack) -> Recording:
    made = toy_recording(seconds)
    return Recording(made.streams, made.label_t, made.label, targets)


def numbers(*pairs: tuple[float, float]) -> Labels:
    labels = Labels(0)
    given = track(*pairs)
    labels.add(LabelBatch(given.t, given.values, "speed"))
    return labels


def of(labels: Labels, *spans: tuple[float, float]) -> list[float]:
    start_B, end_B = np.array(spans, np.float64).T
    return labels.of(start_B, end_B).tolist()


def test_a_number_is_its_mean_over_the_window_by_time():
    labels = numbers((0, 1.0), (10, 5.0), (11, 2.0))
    assert of(labels, (2, 4)) == [1.0]
    assert of(labels, (8, 12)) == pytest.approx([(2 * 1 + 1 * 5 + 1 * 2) / 4])
    assert of(labels, (10, 11), (100, 101)) == [5.0, 2.0], "it holds until the next one"


def test_a_number_that_is_missing_for_a_part_of_the_window_is_missing():
    labels = numbers((1, 1.0), (10, NAN), (12, 3.0))
    found = of(labels, (0, 2), (9, 11), (9, 13), (11, 13), (10, 12), (12, 13))
    np.testing.assert_array_equal(found, [NAN, NAN, NAN, NAN, NAN, 3.0])
    assert of(numbers((0, NAN), (5, 2.0), (5, 4.0)), (5, 6)) == [4.0], "of one time the last that came counts"


def test_means_agree_with_a_fine_comb_over_random_tracks():
    rng = np.random.default_rng(5)
    for _ in range(30):
        t = np.sort(rng.integers(0, 40, 12) / 2.0)
        values = np.where(rng.random(12) < 0.2, NAN, rng.integers(0, 3, 12))
        labels = numbers(*zip(t.tolist(), values.tolist(), strict=True))
        start = rng.integers(0, 30, 8) / 4.0
        end = start + 3.0
        comb = np.arange(0.125, 40, 0.25)  # no change lies on it; between two of its teeth at most one
        at = np.searchsorted(t, comb, side="right") - 1
        held = np.where(at >= 0, values[np.maximum(at, 0)], NAN)
        expected = [held[(comb > a) & (comb < b)].mean() for a, b in zip(start, end, strict=True)]
        found = of(labels, *zip(start.tolist(), end.tolist(), strict=True))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_large_and_small_numbers_do_not_spoil_each_other():
    """A running sum over the whole track would lose the small ones."""
    labels = numbers((0, 1e17), (1, 1.0), (2, 3.0), (3, 1.0))
    assert of(labels, (1, 3)) == [2.0]


@pytest.mark.parametrize("absurd", [1e18, -1e30, np.inf, NAN])
def test_an_absurd_number_is_no_label(absurd):
    """It would be infinite as float32, and every round of this device would fail on it."""
    found = of(numbers((0, 1.0), (1, absurd), (2, 1.0)), (0, 1), (1, 2), (2, 3))
    np.testing.assert_array_equal(found, [1.0, NAN, 1.0])


def test_a_class_that_is_none_of_the_targets_is_no_label():
    labels = Labels(2)
    given = track((0, 1), (1, 2), (2, 0.5), (3, -1), (4, NAN), (5, 0), (6, 1e300))
    labels.add(LabelBatch(given.t, given.values, "side"))
    found = of(labels, *((k, k + 1) for k in range(7)))
    np.testing.assert_array_equal(found, [1, NAN, NAN, NAN, NAN, 0, NAN])
    assert np.isnan(of(labels, (0, 6))).all(), "no class holds throughout"


def test_labels_that_come_while_no_window_closes_stay_bounded():
    labels = Labels(0)
    t = np.arange(MAX_CHANGES + 1000, dtype=np.float64)
    for part in np.array_split(t, 4):
        labels.add(LabelBatch(part, part, "speed"))
    assert len(labels._t) == MAX_CHANGES
    np.testing.assert_array_equal(of(labels, (5, 6), (t[-1], t[-1] + 1)), [NAN, t[-1]])


def test_windows_carry_every_target_of_the_task_and_no_other():
    speed = track((0, 1.0), (10, 2.0), (20, NAN))
    windows = windows_of_recording(task_of(), recording(speed=speed, side=track((5, 1)), wind=track((0, 1))))
    assert set(windows.targets) == {"speed", "side"}, "what is generated needs no labels"
    assert all(y_B.dtype == np.float32 for y_B in windows.targets.values())
    start_B = np.arange(len(windows)) * 1.28
    whole = start_B + 2.56 <= 10
    assert (windows.targets["speed"][whole] == 1).all()
    crossing = (start_B < 10) & ~whole
    expected = (10 - start_B[crossing]) / 2.56 * 1 + (start_B[crossing] + 2.56 - 10) / 2.56 * 2
    np.testing.assert_allclose(windows.targets["speed"][crossing], expected, rtol=1e-6)
    assert np.isnan(windows.targets["speed"][start_B + 2.56 > 20.001]).all()
    np.testing.assert_array_equal(windows.targets["side"], np.where(start_B >= 5, 1, NAN).astype(np.float32))
    plain = windows_of_recording(toy_task(), recording(speed=speed))
    assert not plain.targets
    np.testing.assert_array_equal(plain.y_B, windows.y_B)
    check(windows, task_of())


def test_labels_of_a_target_that_is_not_there_are_counted_as_ignored():
    windower = Windower(task_of())
    for target in ("wind", "turn"):
        windower.feed(LabelBatch(np.zeros(2), np.zeros(2), target), 0.0)
    assert windower.counters.ignored == 4


def test_a_task_with_more_targets_takes_over_what_is_open():
    """No sample and no label is lost, also where a target's meaning changed."""
    windower, made = Windower(task_of(), ("acc",)), motion(20, 50, 3)
    windower.feed(LabelBatch(np.zeros(1), np.array([2.0]), "speed"), 0.0)
    windower.feed(LabelBatch(np.zeros(1), np.array([1.0]), "side"), 0.0)
    windower.feed(LabelBatch(np.zeros(1), np.array([1])), 0.0)
    windower.feed(SampleBatch("acc", made.t[:300], made.values[:300]), 0.0)
    turned = Target(name="side", labels=("up", "down"))
    heart = Target(name="heart", kind="regression")
    other = task_of(targets=(SPEED, turned, heart))
    assert windower.differs(other, ("acc",))
    assert windower.differs(task_of(), ("acc", "gyr"))
    assert not windower.differs(task_of(seed=3), ("acc",))
    windower.use(other, ("acc", "gyr"))
    windower.feed(SampleBatch("acc", made.t[300:], made.values[300:]), 0.0)
    windows = windower.flush()
    assert windows.start_B[0] == 0
    assert windows.present_BM[:, 0].all()
    assert (windows.y_B == 1).all()
    assert (windows.targets["speed"] == 2).all()
    assert np.isnan(windows.targets["side"]).all(), "what was left is not what is up"
    assert set(windows.targets) == {"speed", "side", "heart"}


def test_a_task_that_reads_nothing_of_what_was_collected_waits_for_its_first_sample():
    """Between its announcement and the first sample no modality has a time."""
    acc, gyr = toy_task().modalities
    windower, made = Windower(toy_task(), ("acc",)), motion(20, 50, 3)
    windower.feed(SampleBatch("acc", made.t[:500], made.values[:500]), 0.0)
    assert len(windower.poll(0.0))
    windower.use(toy_task(modalities=(acc.model_copy(update={"input": False}), gyr)), ("gyr",))
    assert windower.poll(1.0) is None
    assert windower.flush() is None
    other = motion(20, 25, 2)
    windower.feed(SampleBatch("gyr", other.t, other.values), 2.0)
    windows = windower.flush()
    assert windows.present_BM[:, 1].all()
    assert not windows.present_BM[:, 0].any()


def test_a_label_that_was_said_before_the_task_knew_its_target_holds_when_it_does():
    windower, made = Windower(toy_task(method="disentafl"), ("acc",)), motion(10, 50, 3)
    for t, value in ((0.0, 0.0), (2.0, 1.0)):
        windower.feed(LabelBatch(np.full(1, t), np.full(1, value), "side"), 0.0)
    for k in range(2 * MAX_STRANGE):
        windower.feed(LabelBatch(np.zeros(1), np.zeros(1), f"odd{k}"), 0.0)
    assert len(windower._strange) == MAX_STRANGE, "however many a peer of the device invents"
    windower.use(task_of(), ("acc",))
    windower.feed(SampleBatch("acc", made.t, made.values), 0.0)
    windows = windower.flush()
    expected = np.where(windows.start_B >= 2, 1, NAN).astype(np.float32)
    np.testing.assert_array_equal(windows.targets["side"], expected)


def test_a_clock_set_back_forgets_the_labels_of_all_targets():
    windower = Windower(task_of(), ("acc",))
    windower.feed(LabelBatch(np.array([100.0]), np.array([2.0]), "speed"), 0.0)
    windower.feed(LabelBatch(np.array([50.0]), np.array([3.0]), "speed"), 0.0)
    assert windower.counters.clock_steps == 1
    made = motion(10, 50, 3)
    windower.feed(SampleBatch("acc", made.t + 120, made.values), 0.0)
    assert set(windower.flush().targets["speed"].tolist()) == {3.0}


def test_a_recording_is_what_was_written(tmp_path):
    given = recording(speed=track((0, 1.5), (3, NAN), (4, -1.0)), side=track((0, 1)))
    write_npz(tmp_path / "a.npz", given)
    found = read(tmp_path / "a.npz")
    assert set(found.streams) == {"acc", "gyr"}
    for name, one in given.targets.items():
        np.testing.assert_array_equal(found.targets[name].t, one.t)
        np.testing.assert_array_equal(found.targets[name].values, one.values)
    np.testing.assert_array_equal(found.label, given.label)


def test_integers_and_disorder_are_read(tmp_path):
    arrays = {"acc/t": np.arange(3.0), "acc/values": np.zeros((3, 3))}
    tracks = {"target/side/t": np.array([5, 1]), "target/side/values": np.array([0, 1], np.uint8)}
    np.savez(tmp_path / "a.npz", **arrays, **tracks)
    found = read(tmp_path / "a.npz").targets["side"]
    assert (found.t.tolist(), found.values.tolist()) == ([1, 5], [1, 0])


def test_tables_have_a_column_a_target(tmp_path):
    rows = ["t,acc.x,label,target.speed,target.side", "0,1,0,1.5,", "1,2,0,1.5,1", "2,3,,,1", "3,4,1,2,0"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    found = read(tmp_path / "a.csv")
    assert set(found.streams) == {"acc"}
    speed, side = found.targets["speed"], found.targets["side"]
    assert speed.t.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(speed.values, [1.5, NAN, 2])
    assert side.t.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(side.values, [NAN, 1, 0])
    assert found.label.tolist() == [0, -1, 1]


ACC = {"acc/t": np.arange(3.0), "acc/values": np.zeros((3, 3))}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"target/speed/t": np.zeros(2)}, "key 'target/speed/values' is missing"),
        (
            {"target/speed/t": np.zeros(2), "target/speed/values": np.zeros(3)},
            r"'target/speed/t' \(2,\) and 'target/speed/values' \(3,\) should be \(n,\)",
        ),
        (
            {"target/speed/t": np.zeros((2, 1)), "target/speed/values": np.zeros((2, 1))},
            r"should be \(n,\)",
        ),
        (
            {"target/speed/t": np.array([0.0, np.inf]), "target/speed/values": np.zeros(2)},
            "'target/speed/t' holds a time that is not finite",
        ),
        (
            {"target/speed/t": np.zeros(1), "target/speed/values": np.array([b"fast"])},
            "'target/speed' holds float64/.S4, not numbers",
        ),
        ({"target/t": np.zeros(1), "target/values": np.zeros(1)}, "'target' is reserved"),
        ({"target/label/t": np.zeros(1), "target/label/values": np.zeros(1)}, "'target' is reserved"),
    ],
)
def test_a_broken_track_is_refused_with_file_and_key(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **ACC, **arrays)
    with pytest.raises(Misconfigured, match=rf"a\.npz: .*{words}"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("column", ["target.", "target.label"])
def test_a_broken_column_is_refused_with_file_and_key(tmp_path, column):
    (tmp_path / "a.csv").write_text(f"t,acc.x,{column}\n0,1,2\n")
    with pytest.raises(Misconfigured, match=r"a\.csv: 'target' is reserved"):
        read(tmp_path / "a.csv")


def test_a_recording_of_labels_alone_is_none(tmp_path):
    np.savez(tmp_path / "a.npz", **{"target/speed/t": np.zeros(1), "target/speed/values": np.zeros(1)})
    with pytest.raises(Misconfigured, match="no key '<modality>/t'"):
        read(tmp_path / "a.npz")


def replay(folder, **options):
    table = {"kind": "replay", "file": "a.npz", **options}
    return open_source(table, "source[0]", folder, ("acc", "gyr"), SystemClock())


async def test_a_replay_gives_labels_before_samples_and_none_after_the_end(tmp_path):
    write_npz(tmp_path / "a.npz", recording(10, speed=track((0, 1.0), (6, 2.0))))
    batches = [batch async for batch in replay(tmp_path, speed=10_000, start_s=4.0).samples()]
    speeds = [b for b in batches if isinstance(b, LabelBatch) and b.target == "speed"]
    assert batches.index(speeds[0]) < next(i for i, b in enumerate(batches) if isinstance(b, SampleBatch))
    assert [float(b.t[0]) for b in speeds[:2]] == [4.0, 6.0], "the one in force where it begins, and the next"
    np.testing.assert_array_equal([b.label[0] for b in speeds], [1.0, 2.0, NAN])
    assert all(b.label.dtype == np.int64 for b in batches if isinstance(b, LabelBatch) and b not in speeds)


async def test_labels_of_a_loop_move_with_its_samples(tmp_path):
    write_npz(tmp_path / "a.npz", recording(10, speed=track((3, 1.0))))
    seen: list[tuple[float, float]] = []
    async with asyncio.timeout(20):
        async for batch in replay(tmp_path, speed=10_000, loop=True, loop_gap_s=5.0).samples():
            if isinstance(batch, LabelBatch) and batch.target == "speed":
                seen += zip(batch.t.tolist(), batch.label.tolist(), strict=True)
            if len(seen) == 4:
                break
    np.testing.assert_allclose(seen[:2], [(3, 1), (9.98, NAN)])
    np.testing.assert_allclose(seen[2][0], 3 + 9.98 + 5)


def test_doubtful_tracks_are_said(tmp_path):
    odd = {"speed": track((0, 9.5)), "side": track((0, 3), (1, -1), (2, 0.5)), "turn": track((0, 1))}
    write_npz(tmp_path / "a.npz", recording(10, **odd, wind=track((0, 1))))
    said = "\n".join(replay(tmp_path).doubts(task_of()))
    assert "target 'side': label 0.5, 3: no class of it, which has 0 to 1" in said
    assert "target 'turn' is generated" in said
    assert "target 'wind' is not in task 'toy' (further targets: speed, side, turn)" in said
    assert "speed'" not in said


def test_no_modality_can_be_named_like_the_tracks():
    with pytest.raises(ValueError, match="'target': the name has a meaning of its own"):
        toy_task(modalities=({"name": "target", "channels": 1, "rate_hz": 1},))


def test_a_recording_of_the_release_before_reads_as_before(tmp_path):
    write_toy(tmp_path, 20)
    found = read(tmp_path / "toy.npz")
    assert not found.targets
    assert isinstance(found.streams["acc"], Stream)
    np.testing.assert_array_equal(found.label, toy_recording(20).label)
