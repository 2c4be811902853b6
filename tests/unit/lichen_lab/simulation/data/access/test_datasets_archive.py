"""Published archives: nested or not, and those that are damaged, foreign or made to do harm."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.simulation.data.access import archive
from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import uci_har_official as official
from protocol.errors import Misconfigured, Reason, Refused
from tests.support.lab.made_data import Arrays, har_parts, har_texts, nested, zipped

Texts = dict[str, bytes]


def read(path: Path) -> dict[Part, Arrays]:
    with archive.opened(path, path.parent, official.OWN_FOLDER, official.SAMPLE) as source:
        return official.read(source)


def refused(tmp_path: Path, data: bytes) -> Refused:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(Refused) as said:
        read(tmp_path / "a.zip")
    assert "a.zip" in said.value.detail
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]
    return said.value


def same(one: dict[Part, Arrays], other: dict[Part, Arrays]) -> bool:
    return all(np.array_equal(one[part][key], other[part][key]) for part in one for key in one[part])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_archive_is_read_in_the_official_order_however_deep_it_lies(tmp_path: Path, depth: int) -> None:
    parts = har_parts()
    data = zipped(har_texts(parts))
    for _ in range(depth):
        data = nested(data)
    (tmp_path / "a.zip").write_bytes(data)
    found = read(tmp_path / "a.zip")
    assert same(found, parts)
    assert found["train"]["x"].dtype == np.float32


def test_an_unpacked_folder_is_read_from_itself_its_parent_or_with_the_archive_in_it(tmp_path: Path) -> None:
    parts = har_parts()
    for name, content in har_texts(parts).items():
        file = tmp_path / "out" / "UCI HAR Dataset" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    assert same(read(tmp_path / "out"), parts)
    assert same(read(tmp_path / "out" / "UCI HAR Dataset"), parts)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "UCI HAR Dataset.zip").write_bytes(zipped(har_texts(parts)))
    assert same(read(tmp_path / "half"), parts)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no such file"):
        read(tmp_path / "none.zip")
    with pytest.raises(Misconfigured, match=r"it has no train/y_train\.txt"):
        read(tmp_path)


@pytest.mark.parametrize("cut", [0, 10, -30])
def test_a_page_or_a_cut_archive_is_no_archive(tmp_path: Path, cut: int) -> None:
    data = b"<!doctype html><p>not here" if cut == 0 else zipped(har_texts(har_parts()))[:cut]
    said = refused(tmp_path, data)
    assert said.reason is Reason.MALFORMED
    assert "no ZIP archive" in said.detail
    assert cut or "doctype" in said.detail


def test_a_foreign_archive_is_refused(tmp_path: Path) -> None:
    assert "neither train/y_train.txt nor one archive" in refused(tmp_path, zipped({"a.txt": b"1"})).detail
    assert "doctype" in refused(tmp_path, nested(b"<!doctype html>")).detail
    deep = zipped(har_texts(har_parts()))
    for _ in range(archive.MAX_NESTED + 1):
        deep = nested(deep)
    assert "nor one archive" in refused(tmp_path, deep).detail


def test_a_flipped_byte_is_found_by_the_checksum_or_the_text(tmp_path: Path) -> None:
    data = bytearray(zipped(har_texts(har_parts())))
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        info = packed.getinfo(f"UCI HAR Dataset/{official.name_of('train', 'body_gyro_y')}")
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0x10
    said = refused(tmp_path, bytes(data))
    assert said.reason is Reason.MALFORMED
    assert "body_gyro_y_train.txt" in said.detail


def test_an_entry_above_the_bound_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A bomb: 80 MB of spaces in 80 kB."""
    texts = har_texts(har_parts()) | {"train/y_train.txt": b" " * (archive.MAX_FILE + 1)}
    said = refused(tmp_path, zipped(texts))
    assert said.reason is Reason.TOO_LARGE
    assert "y_train.txt: 67108865 bytes, at most 67108864" in said.detail


def test_an_inner_archive_above_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ARCHIVE", 1000)
    assert refused(tmp_path, nested(zipped(har_texts(har_parts())))).reason is Reason.TOO_LARGE


def test_an_entry_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    """The directory claims more than the compressed bytes can become."""
    data = bytearray(zipped({"train/y_train.txt": b"1\n2\n"}))
    directory = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, directory + 24, 60_000_000)
    said = refused(tmp_path, bytes(data))
    assert said.reason is Reason.TOO_LARGE
    assert "claims more bytes" in said.detail


def test_an_entry_that_lies_outside_the_archive_is_refused(tmp_path: Path) -> None:
    """A directory said to lie beyond the end: zipfile then seeks to before the beginning."""
    data = bytearray(zipped({"train/y_train.txt": b"1\n2\n"}))
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        struct.pack_into("<I", data, len(data) - 6, packed.start_dir + 1000)
    said = refused(tmp_path, bytes(data))
    assert said.reason is Reason.MALFORMED


def test_an_encrypted_entry_a_second_copy_and_too_many_entries_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(zipped({"train/y_train.txt": b"1\n2\n"}))
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in refused(tmp_path, bytes(data)).detail
    texts = har_texts(har_parts())
    assert "2 times" in refused(tmp_path, zipped({**texts, "copy/train/y_train.txt": b"1\n"})).detail
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    assert refused(tmp_path, zipped(texts)).reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "train/y_train.txt",
            b"1\n2\n3\n4\n7\n",
            "'y' must be finite integers of shape (B) from 1 to 6, it is int8 of shape (5), from 1 to 7",
        ),
        ("train/y_train.txt", b"1\n2.5\n3\n", "not small integers"),
        ("train/y_train.txt", b"1\nnan\n3\n", "not small integers"),
        ("train/y_train.txt", b"1\n1000\n3\n", "not small integers"),
        ("train/y_train.txt", b"1 2\n3 4\n", "2 lines of 2 numbers"),
        ("train/y_train.txt", b"", "not lines of numbers"),
        ("train/y_train.txt", b"standing\n", "not lines of numbers"),
        ("train/y_train.txt", "٣\n".encode(), "not lines of numbers"),
        (
            "test/subject_test.txt",
            b"1\n2\n",
            "must be finite integers of shape (B) from 1 to 30, it is int8 of shape (2), from 1 to 2; B is 4",
        ),
        ("test/Inertial Signals/total_acc_z_test.txt", None, "is not in it"),
        ("test/Inertial Signals/total_acc_z_test.txt", b"1 2 3\n" * 4, "4 lines of 3 numbers"),
        ("test/Inertial Signals/total_acc_z_test.txt", (b"1 " * 128 + b"\n") * 3, "should be 4 of 128"),
        ("test/Inertial Signals/total_acc_z_test.txt", (b"1 " * 128 + b"\n") * 5, "should be 4 of 128"),
        ("test/Inertial Signals/total_acc_z_test.txt", (b"1 " * 127 + b"1e99\n") * 4, "finite"),
        ("test/Inertial Signals/total_acc_z_test.txt", b"1 2\n1 2 3\n", "not lines of numbers"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    texts: Texts = har_texts(har_parts())
    if content is None:
        del texts[name]
    else:
        texts[name] = content
    said = refused(tmp_path, zipped(texts))
    assert said.reason is Reason.MALFORMED
    assert words in said.detail
    if "must be" not in words and words != "finite":
        assert name in said.detail
