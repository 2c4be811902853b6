"""The coordinator's labelled windows: every kind of file gives the same ones, and every mistake its words."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.windows.window_sets import windows_of_recording
from models.contract import WindowSet
from models.data import labelled_windows as labelled
from models.data import window_set
from models.data.streams.recording import Recording, Stream, write_npz
from models.data.streams.windows import Windows
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Target, Task
from tests.support.agent.data import toy_recording, toy_task
from tests.support.methods.labelled_files import LABELS, Cells, cells, task_of, write_csv


def same(one: WindowSet, other: WindowSet) -> bool:
    arrays = ((a.x["acc"], a.x["gyr"], a.present_BM, a.quality_BM, a.y_B) for a in (one, other))
    return all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


def as_npz(path: Path, columns: Cells, labels: Sequence[int]) -> None:
    t = np.array(columns["t"], np.float64)
    acc = np.array([columns["acc.x"], columns["acc.y"]], np.float32).T
    has = np.array([value is not None for value in columns["gyr.z"]])
    gyr = np.array([value for value in columns["gyr.z"] if value is not None], np.float32)[:, None]
    streams = {"acc": Stream(t, acc), "gyr": Stream(t[has], gyr)}
    write_npz(path, Recording(streams, 10.0 * np.arange(len(labels)), np.array(labels, np.int64)))


def test_labels_by_name_by_index_and_as_a_recording_give_the_same_windows(tmp_path: Path) -> None:
    for name, words in (("names", ("slow", "fast", "")), ("whole", (0, 2, -1)), ("real", ("0.0", "2.0", ""))):
        write_csv(tmp_path / f"{name}.csv", cells(words))
    as_npz(tmp_path / "rec.npz", cells((0, 2, -1)), (0, 2, -1))
    files = ("names.csv", "whole.csv", "real.csv", "rec.npz")
    names, *others = (labelled.load(task_of(file), tmp_path) for file in files)
    assert np.bincount(names.y_B).tolist() == [9, 0, 9], (
        "windows across a change of label, or without one, are out"
    )
    assert names.present_BM.all()
    assert (names.quality_BM == 1).all()
    assert all(same(names, other) for other in others)


def test_parquet_gives_what_csv_gives_whatever_its_columns_types(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {**cells(("slow", "fast")), "who": [1.0] * 100 + [2.0] * 100}
    named = {"recording_column": "who"}
    columns["t"] = [*columns["t"][:100], *columns["t"][:100]]
    write_csv(tmp_path / "a.csv", columns)
    wanted = labelled.load(task_of("a.csv", **named), tmp_path)
    for place, words in enumerate(
        (columns["label"], pa.array(columns["label"]).dictionary_encode(), [0] * 100 + [2] * 100)
    ):
        pq.write_table(pa.table({**columns, "label": words}), tmp_path / f"{place}.parquet")
        assert same(wanted, labelled.load(task_of(f"{place}.parquet", **named), tmp_path))


def test_no_window_spans_two_recordings(tmp_path: Path) -> None:
    first, second = cells(("slow",), 4.5, seed=1), cells(("fast",), 4.5, seed=2)
    both = {name: [*first[name], *second[name]] for name in first} | {"who": ["ann"] * 45 + ["bob"] * 45}
    write_csv(tmp_path / "own.csv", both)
    made = labelled.load(task_of(recording_column="who"), tmp_path)
    ann = np.array([first["acc.x"], first["acc.y"]], np.float32)
    assert made.y_B.tolist() == [0, 0, 0, 0, 2, 2, 2, 2], "the last of each is covered for 1.5 s of 2"
    assert np.allclose(made.x["acc"][:3], [ann[:, at : at + 20] for at in (0, 10, 20)])
    one_after_the_other = {**both, "t": [round(at / 10, 1) for at in range(90)]}
    write_csv(tmp_path / "own.csv", one_after_the_other)
    joined = labelled.load(task_of(), tmp_path)
    assert joined.y_B.tolist() == [0, 0, 0, 2, 2, 2], "one recording: a grid over all of it, two lie across"


def test_recordings_may_lie_mixed_beside_notes_and_a_marked_header_is_read(tmp_path: Path) -> None:
    ann, bob = cells(("slow",), seed=1), cells(("fast",), seed=2)
    mixed = {name: [cell for pair in zip(ann[name], bob[name], strict=True) for cell in pair] for name in ann}
    write_csv(
        tmp_path / "own.csv",
        {**mixed, "who": ["ann", "bob"] * 100, "note": ["?"] * 200},
        encoding="utf-8-sig",
    )
    made = labelled.load(task_of(recording_column="who"), tmp_path)
    assert np.bincount(made.y_B).tolist() == [9, 0, 9]


def test_a_label_that_reads_as_a_number_is_a_name_and_no_index(tmp_path: Path) -> None:
    write_csv(tmp_path / "own.csv", cells(("1", "3.0")))
    made = labelled.load(task_of(labels=("1", "2", "3")), tmp_path)
    assert np.unique(made.y_B).tolist() == [0, 2]
    write_csv(tmp_path / "own.csv", cells(("1", "0")))
    with pytest.raises(Misconfigured, match=r"'0' is no label of task 'toy' \(labels: 1, 2, 3\)"):
        labelled.load(task_of(labels=("1", "2", "3")), tmp_path)


def test_a_window_set_is_taken_as_it_is_without_its_unlabelled_and_empty_windows(tmp_path: Path) -> None:
    task = task_of("own.npz")
    write_csv(tmp_path / "own.csv", cells(("slow", "fast", "")))
    whole = labelled.read(task_of(), tmp_path).windows
    assert (len(whole), (whole.y_B < 0).sum()) == (29, 11)
    present_BM = whole.present_BM.copy()
    present_BM[0] = False
    kept = replace(whole, present_BM=present_BM, quality_BM=np.full_like(whole.quality_BM, 0.5))
    window_set.save(tmp_path / "own.npz", kept)
    made = labelled.load(task, tmp_path)
    assert len(made) == 17
    assert (made.quality_BM == 0.5).all()


def test_contexts_are_not_kept_and_windows_are_those_of_a_device(tmp_path: Path) -> None:
    task = toy_task(labelled=Labelled(file="own.npz"))
    longer = task.model_copy(update={"window": task.window.model_copy(update={"context_s": 9.0})})
    write_npz(tmp_path / "own.npz", toy_recording())
    assert labelled.load(longer, tmp_path).context is None
    on_device = windows_of_recording(task, toy_recording())
    made = labelled.load(task, tmp_path)
    own = window_set.select(on_device, on_device.y_B >= 0)
    assert np.array_equal(own.x["acc"], made.x["acc"])
    assert np.array_equal(own.y_B, made.y_B)


def test_windows_that_only_a_further_target_labels_are_usable(tmp_path: Path) -> None:
    speed = Target(name="speed", kind="regression", unit="m/s")
    task = task_of().model_copy(update={"targets": (speed,)})
    write_csv(tmp_path / "own.csv", {**cells(("slow", "")), "target.speed": [1.5] * 200})
    made = labelled.load(task, tmp_path)
    assert len(made) == 19
    assert np.bincount(made.y_B + 1).tolist() == [10, 9]
    assert np.allclose(made.targets["speed"], 1.5)


def broken(**changed: Sequence[object]) -> Cells:
    return {**cells(("slow", "fast")), **changed}


def without(*names: str) -> Cells:
    return {name: column for name, column in cells(("slow", "fast")).items() if name not in names}


AGAIN = [round(at / 10, 1) for at in range(100)] * 2
WRONG: dict[str, tuple[Cells, dict[str, str], str]] = {
    "unknown label": (
        broken(label=["slow"] * 190 + ["midle"] * 10),
        {},
        r"own\.csv: line 192, column 'label': 'midle' is no label .*did you mean 'middle'",
    ),
    "index": (broken(label=[0] * 100 + [3] * 100), {}, r"line 102, column 'label': '3' is no label"),
    "no label column": (
        without("label"),
        {},
        r"label_column: .*own\.csv has no column 'label' \(columns: t,",
    ),
    "no recording column": (broken(), {"recording_column": "who"}, "recording_column: .*no column 'who'"),
    "one column twice": (
        broken(),
        {"recording_column": "label"},
        "recording_column: 'label' is the column of",
    ),
    "recording empty": (
        broken(who=["ann"] * 150 + [""] * 50),
        {"recording_column": "who"},
        "line 152, column 'who' is empty",
    ),
    "several recordings": (
        broken(t=AGAIN),
        {},
        r"line 102, column 't': time goes back from 9\.9 to 0 s; .*recording_column",
    ),
    "time goes back": (
        broken(t=AGAIN, who=["ann"] * 200),
        {"recording_column": "who"},
        r"time goes back .* within one recording \(who 'ann'\)",
    ),
    "no time": (broken(t=[None, *AGAIN[1:]]), {}, "line 2, column 't': no time"),
    "no t": (without("t"), {}, "no column 't'"),
    "not a number": (broken(**{"acc.x": ["low"] * 200}), {}, "line 2, column 'acc.x': 'low' is not a number"),
    "channels": (without("acc.y"), {}, r"own\.csv: modality 'acc' has 1 channels, the task says 2"),
    "foreign": (
        without("acc.x", "acc.y", "gyr.z") | {"mag.x": [0.0] * 200},
        {},
        "the recording has mag, task 'toy' acc, gyr",
    ),
    "too short": (
        {name: column[:5] for name, column in broken().items()},
        {},
        "it gives no window",
    ),
    "no rows": ({name: [] for name in broken()}, {}, r"it gives no window: nothing in it is 2 s long"),
    "none labelled": (
        broken(label=[""] * 200),
        {},
        "none of its 19 windows is labelled: one label must hold",
    ),
    "one class": (broken(label=["fast"] * 200), {}, "all 19 labelled windows are of class 'fast'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table_is_said_with_line_and_column(what: str, tmp_path: Path) -> None:
    columns, named, words = WRONG[what]
    write_csv(tmp_path / "own.csv", columns)
    with pytest.raises(Misconfigured, match=words):
        labelled.load(task_of(**named), tmp_path)


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "own.txt").write_text("t,acc.x")
    as_npz(tmp_path / "beyond.npz", cells(("slow", "fast")), (0, 3))
    write_npz(
        tmp_path / "bare.npz", replace(toy_recording(5.0), label_t=np.empty(0), label=np.empty(0, np.int64))
    )
    np.savez(tmp_path / "half.npz", y=np.zeros(3, np.int64))
    for file, words in (
        ("gone.csv", r"file: .*gone\.csv is no file \(relative paths begin where the task file is\)"),
        ("folder.csv", "is no file"),
        ("own.txt", r"suffix '\.txt' is none of \.npz, \.csv, \.parquet"),
        ("text.npz", r"text\.npz: not a plain npz file"),
        ("half.npz", r"half\.npz: key 'present' is not in it"),
        ("beyond.npz", "label/values holds 3; task 'toy' has classes 0 to 2"),
        ("bare.npz", r"bare\.npz: no keys 'label/t' and 'label/values'"),
    ):
        with pytest.raises(Misconfigured, match=words):
            labelled.load(task_of(file), tmp_path)
    for key, words in (("label_column", "leave the key out"), ("recording_column", "npz and has no columns")):
        with pytest.raises(Misconfigured, match=rf"{key}: .*{words}"):
            labelled.load(task_of("beyond.npz", **{key: "who"}), tmp_path)
    with pytest.raises(Misconfigured, match="names no labelled windows"):
        labelled.load(task_of().model_copy(update={"labelled": None}), tmp_path)


def test_windows_that_would_not_fit_are_refused_before_they_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "own.csv", cells(("slow", "fast")))
    monkeypatch.setattr(labelled, "MAX_BYTES", 1000)
    with pytest.raises(Misconfigured, match=r"own\.csv: the windows take over .* window\.stride_s"):
        labelled.load(task_of(), tmp_path)


def test_overlapping_windows_are_refused_before_all_of_them_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "own.csv", cells(("slow", "fast")))
    monkeypatch.setattr(labelled, "MAX_BYTES", 1000)
    monkeypatch.setattr("models.data.streams.windows.MAX_WINDOWS", 2)
    batches, whole = [], labelled.cut

    def counted(task: Task, recording: Recording) -> Iterator[Windows]:
        for windows in whole(task, recording):
            batches.append(len(windows))
            yield windows

    monkeypatch.setattr(labelled, "cut", counted)
    with pytest.raises(Misconfigured, match=r"own\.csv: the windows take over"):
        labelled.load(task_of(), tmp_path)
    assert sum(batches) < 9, "of eighteen"


def test_a_window_set_that_the_worker_could_not_read_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "own.csv", cells(("slow", "fast")))
    windows = labelled.load(task_of(), tmp_path)
    narrow = {f"x/{name}": np.zeros_like(x, np.int8) for name, x in windows.x.items()}
    np.savez(
        tmp_path / "own.npz",
        present=windows.present_BM,
        quality=windows.quality_BM,
        y=windows.y_B,
        **narrow,
    )
    assert labelled.load(task_of("own.npz"), tmp_path).x["acc"].dtype == np.float32
    monkeypatch.setattr(labelled, "MAX_BYTES", (tmp_path / "own.npz").stat().st_size)
    with pytest.raises(Misconfigured, match=r"own\.npz: the windows take over"):
        labelled.load(task_of("own.npz"), tmp_path)


def test_a_path_that_can_be_none_and_a_damaged_archive_are_said_and_crash_nothing(tmp_path: Path) -> None:
    for file in ("~nobody-of-that-name/own.npz", "x" * 1000):
        with pytest.raises(Misconfigured, match=f"file: {file[:20]}"):
            labelled.load(task_of(file), tmp_path)
    np.savez(tmp_path / "own.npz", y=np.zeros(3, np.int64))
    content = bytearray((tmp_path / "own.npz").read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 6] = 99  # the version that is needed to read it
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(Misconfigured, match=r"own\.npz: not a plain npz file: NotImplementedError"):
        labelled.load(task_of("own.npz"), tmp_path)


def test_a_note_beside_the_tracks_makes_no_window_set_of_a_recording(tmp_path: Path) -> None:
    as_npz(tmp_path / "bare.npz", cells(("slow", "fast")), (0, 2))
    with np.load(tmp_path / "bare.npz") as tracks:
        np.savez(tmp_path / "own.npz", who=np.zeros(3), **tracks)
    assert same(*(labelled.load(task_of(file), tmp_path) for file in ("own.npz", "bare.npz")))


def test_gaps_name_classes_modalities_and_values_that_no_sensor_reads(tmp_path: Path) -> None:
    columns = cells(("slow", "fast"))
    columns["gyr.z"] = [*columns["gyr.z"][:100], *[None] * 100]
    columns["acc.x"] = [*columns["acc.x"][:195], *[9.81] * 5]
    write_csv(tmp_path / "own.csv", {**columns, "mag.x": [0.0] * 200})
    found = labelled.read(task_of(), tmp_path)
    windows = labelled.usable(task_of(), found)
    assert labelled.gaps(task_of(), found, windows) == (
        "the task does not have what the file calls mag",
        "class 'middle': no labelled windows",
        "modality 'gyr': in no window of 'fast'",
        "modality 'acc': 1 of 18 windows go beyond -8 to 8 g (low, high): another unit?",
    )
    few = window_set.select(windows, windows.y_B == 0)
    few = replace(few, present_BM=few.present_BM & [True, False])
    told = labelled.gaps(task_of(), replace(found, strange=()), window_set.select(few, np.arange(3)))
    assert told[:2] == ("modality 'gyr': in no window", "class 'slow': only 3 labelled windows")


def test_nothing_is_missing_in_windows_of_all_classes_and_modalities(tmp_path: Path) -> None:
    write_csv(tmp_path / "own.csv", cells(LABELS))
    found = labelled.read(task_of(), tmp_path)
    assert labelled.gaps(task_of(), found, labelled.usable(task_of(), found)) == ()


def test_gaps_say_that_windows_are_longer_than_the_activities(tmp_path: Path) -> None:
    its = task_of()
    write_csv(tmp_path / "own.csv", cells(its.labels * 12, seconds=1.0))
    found = labelled.read(its, tmp_path)
    (words,) = [one for one in labelled.gaps(its, found, found.windows) if "more than one label" in one]
    assert 'window.label_rule = "majority"' in words
