"""Tables -> recordings: what is guessed, what is asked for, and errors with file, line and column."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lichen.commands.data import app
from lichen.data_import.import_options import ImportOptions
from lichen.data_import.tables import table_rows
from lichen.data_import.tables.columns import guess
from lichen.data_import.tables.times import guess as guess_unit
from models.data.streams.recording import Recording, read
from protocol.errors import Misconfigured


def imported(*words: object) -> dict[str, object]:
    done = CliRunner().invoke(app, ["import", *map(str, words), "--format", "json"])
    assert done.exit_code == 0, done.exception
    found: dict[str, object] = json.loads(done.stdout)
    return found


def refused(*words: object) -> str:
    done = CliRunner().invoke(app, ["import", *map(str, words)])
    assert done.exit_code != 0
    assert isinstance(done.exception, Exception)
    return str(done.exception)


def table(path: Path, header: str, rows: Sequence[Sequence[object]], delimiter: str = ",") -> Path:
    path.write_text("\n".join([header, *(delimiter.join(map(str, row)) for row in rows), ""]))
    return path


def people(path: Path) -> Path:
    """Two people in one table at 50 Hz in ms, their rows mixed; the second has two sessions from 0."""
    rows: list[tuple[object, ...]] = []
    for i in range(300):
        rows.append((20 * i, "ann", i, -i, 0.5, "", "walk" if i < 200 else "run", "a note"))
        rows.append((20 * (i % 200), "bob", 2 * i, 0, 1, 21.5, "walk", ""))
    return table(path, "Time,Subject ID,accX,accY,accZ,temp,Activity,comment", rows)


def recording(folder: Path, name: str) -> Recording:
    return read(folder / f"{name}.npz")


def test_a_table_of_people_becomes_a_recording_each(tmp_path: Path) -> None:
    report = imported(people(tmp_path / "a.csv"), "--out", tmp_path / "rec")
    ann, bob = recording(tmp_path / "rec", "ann"), recording(tmp_path / "rec", "bob")
    np.testing.assert_allclose(ann.streams["acc"].t, np.arange(300) * 0.02)
    np.testing.assert_array_equal(ann.streams["acc"].values[:, 1], -np.arange(300))
    assert "temp" not in ann.streams, "empty cells are no samples"
    assert len(bob.streams["temp"].t) == 300
    words = [ann.names["label"][code] for code in ann.label]
    assert (words, ann.label_t.tolist()) == (["walk", "run"], [0.0, 4.0])
    steps = np.diff(bob.streams["acc"].t)
    assert np.flatnonzero(steps > 1).tolist() == [199]
    assert steps[199] == pytest.approx(10), "a session that begins at 0 again follows the first"
    assert report["classes"] == ["run", "walk"]
    assert "line 403" in str(report["notes"])


def test_rows_in_many_chunks_give_what_one_chunk_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = people(tmp_path / "a.csv")
    imported(file, "--out", tmp_path / "one")
    monkeypatch.setattr(table_rows, "CHUNK_ROWS", 7)
    imported(file, "--out", tmp_path / "many")
    for name in ("ann", "bob"):
        one, many = recording(tmp_path / "one", name), recording(tmp_path / "many", name)
        for modality, stream in one.streams.items():
            np.testing.assert_array_equal(stream.t, many.streams[modality].t)
            np.testing.assert_array_equal(stream.values, many.streams[modality].values)
        np.testing.assert_array_equal(one.label, many.label)


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    t = [f"2024-05-01T12:00:0{i}.500000" for i in range(9)]
    x = np.arange(9.0)
    text = table(tmp_path / "a.csv", "time,acc_x,acc_y,label", list(zip(t, x, -x, ["a"] * 9, strict=True)))
    columns = {"time": pa.array(np.array(t, "datetime64[us]")), "acc_x": x, "acc_y": -x, "label": ["a"] * 9}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    imported(text, tmp_path / "b.parquet", "--out", tmp_path / "rec")
    one, other = recording(tmp_path / "rec", "a"), recording(tmp_path / "rec", "b")
    np.testing.assert_array_equal(one.streams["acc"].t, other.streams["acc"].t)
    assert one.streams["acc"].t[0] == 1714564800.5
    np.testing.assert_array_equal(one.streams["acc"].values, other.streams["acc"].values)


def test_semicolons_decimal_commas_and_classes_that_count_from_1(tmp_path: Path) -> None:
    rows = [("0,00", "1,5", 1), ("0,02", "2,5", 1), ("0,04", "3,5", 2)]
    file = table(tmp_path / "a.csv", "t;acc.x;label", rows, ";")
    report = imported(file, "--out", tmp_path / "rec", "--class", "2=jump")
    found = recording(tmp_path / "rec", "a")
    np.testing.assert_allclose(found.streams["acc"].values[:, 0], [1.5, 2.5, 3.5])
    assert report["classes"] == ["1", "jump"] or report["classes"] == ["jump", "1"]
    imported(file, "--out", tmp_path / "plain")
    assert set(recording(tmp_path / "plain", "a").names["label"]) == {"class_1", "class_2"}


def test_indices_from_0_stay_indices_and_targets_are_numbers_or_names(tmp_path: Path) -> None:
    rows = [(0, 1, 0, 1.5, "dry"), (1, 2, 2, "", "dry"), (2, 3, -1, 2.5, "wet")]
    file = table(tmp_path / "a.csv", "t,acc.x,label,speed,road", rows)
    imported(file, "--out", tmp_path / "rec", "--target", "speed=speed", "--target", "road=road")
    found = recording(tmp_path / "rec", "a")
    assert (found.label.tolist(), found.names.get("label")) == ([0, 2, -1], None)
    np.testing.assert_array_equal(found.targets["speed"].values, [1.5, np.nan, 2.5])
    assert found.names["road"] == ("dry", "wet")


def test_rows_without_a_time_are_examples_or_come_at_a_rate(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "f1,f2,label", [(i, -i, "ab"[i % 2]) for i in range(40)])
    assert "--rate-hz" in refused(file, "--out", tmp_path / "none")
    imported(file, "--out", tmp_path / "rate", "--rate-hz", "10")
    np.testing.assert_allclose(recording(tmp_path / "rate", "a").streams["f"].t, np.arange(40) / 10)
    imported(file, "--out", tmp_path / "rows", "--examples")
    found = recording(tmp_path / "rows", "a")
    values = found.streams["features"].values[:, 0].astype(int)
    assert sorted(values.tolist()) == list(range(40))
    assert values.tolist() != list(range(40)), "in a random order"
    labels = np.repeat(found.label, np.diff(np.append(found.label_t, 40)).astype(int))
    words = np.array(found.names["label"])[labels]
    assert words.tolist() == ["ab"[value % 2] for value in values], "each with its own class"


def test_a_file_a_modality_shares_the_time_of_the_device(tmp_path: Path) -> None:
    for name, start in (("acc", 100.0), ("gyro", 101.0)):
        folder = tmp_path / "p1"
        folder.mkdir(exist_ok=True)
        table(folder / f"{name}.csv", "t,x,y", [(start + i / 10, i, i) for i in range(30)])
    imported(tmp_path / "p1", "--out", tmp_path / "rec", "--pattern", "{modality}")
    imported(tmp_path, "--out", tmp_path / "all", "--pattern", "{device}/{modality}")
    found = recording(tmp_path / "all", "p1")
    assert {name: stream.t[0] for name, stream in found.streams.items()} == {"acc": 100, "gyro": 101}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t,acc.x\n0,1\n1,2\n2,oops\n3,4\n", "line 4, column 'acc.x': 'oops' is not a number"),
        ("t,acc.x\n0,1\n,2\n", "line 3, column 't': it is empty"),
        ("t,acc.x\n0,1\n1,2,3\n", "line 3 has 3 cells, the table 2 columns"),
        ("t,t\n0,1\n", "column 't' occurs twice"),
        ("0,1\n1,2\n", "--columns"),
        ("", "first line is empty"),
        ("t,name\n0,ann\n", "no column holds numbers"),
        ("t,acc.x,person\n0,1,ann\n1,2,\n", "line 3, column 'person': it is empty"),
    ],
)
def test_a_damaged_table_is_refused_by_file_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    found = refused(file, "--out", tmp_path / "rec")
    assert words in found
    assert str(file) in found
    assert not [*(tmp_path / "rec").glob("**/*")], "nothing is left behind"


def test_what_the_table_lacks_is_named_with_the_nearest(tmp_path: Path) -> None:
    file = people(tmp_path / "a.csv")
    assert "did you mean 'Time'?" in refused(file, "--time", "Tme", "--out", tmp_path / "rec")
    assert "--target: " in refused(file, "--target", "speed=pace", "--out", tmp_path / "rec")
    assert "NAME=VALUE" in refused(file, "--class", "walking", "--out", tmp_path / "rec")
    assert "has a meaning of its own" in refused(file, "--modality", "label=accX", "--out", tmp_path / "rec")


def test_a_folder_with_files_is_not_written_to_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    file = people(tmp_path / "a.csv")
    report = imported(file, "--dry-run", "--out", tmp_path / "rec")
    assert report["out"] is None
    assert len(report["recordings"]) == 2  # type: ignore[arg-type]
    assert not (tmp_path / "rec").exists()
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "mine.txt").write_text("keep")
    assert "not empty" in refused(file, "--out", tmp_path / "rec")
    assert [one.name for one in (tmp_path / "rec").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("column", "cells", "unit"),
    [
        ("t", ["0.0", "0.02", "0.04"], "s"),
        ("time", ["0", "20", "40"], "ms"),
        ("time", ["0", "20000", "40000"], "us"),
        ("time", ["0", "60", "120"], "s"),
        ("time_ms", ["0.5", "1.5"], "ms"),
        ("timestampNs", ["5", "6"], "ns"),
        ("ts", ["1714564800000", "1714564800020"], "ms"),
        ("ts", ["1714564800.1", "1714564800.2"], "s"),
        ("date", ["2024-05-01 12:00:00"], "iso"),
    ],
)
def test_the_unit_of_times(column: str, cells: list[str], unit: str) -> None:
    assert guess_unit(column, cells, None).unit == unit


@pytest.mark.parametrize(
    ("names", "modalities"),
    [
        ("t,ax,ay,az,gx,gy,gz", {"acc": 3, "gyro": 3}),
        ("timestamp,Accelero X (g),Accelero Y (g),humidity (%)", {"accelero": 2, "humidity": 1}),
        ("t,x,y,z", {"xyz": 3}),
        ("t,acc.x,gyro.x", {"acc": 1, "gyro": 1}),
        ("t,relax,max", {"relax": 1, "max": 1}),
        ("t,wrist_acc_x,wrist_acc_y,ankle_acc_x,ankle_acc_y", {"wrist_acc": 2, "ankle_acc": 2}),
        ("id,t,lead1,lead2", {"lead": 2}),
        (f"t,{','.join(f'sensor {word}' for word in 'abcdefghijklmnopqrs')}", {"values": 19}),
    ],
)
def test_columns_are_grouped_into_modalities(names: str, modalities: dict[str, int]) -> None:
    columns = names.split(",")
    found = guess(Path("a.csv"), columns, [["1"] * len(columns)], ImportOptions())
    assert {name: len(listed) for name, listed in found.modalities.items()} == modalities


def test_a_pattern_that_does_not_fit_is_refused_with_the_path(tmp_path: Path) -> None:
    people(tmp_path / "a.csv")
    assert "'a' (without its suffix) does not fit" in refused(tmp_path, "--pattern", "{device}_{label}")
    assert "each of {device}" in refused(tmp_path, "--pattern", "{person}")
    with pytest.raises(Misconfigured, match="no such file"):
        raise Misconfigured(refused(tmp_path / "none.csv"))
