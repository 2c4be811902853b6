"""Files of facts, features and masks: what is read, and what a bad one is told."""

from pathlib import Path

import numpy as np
import pytest

from models.knowledge_graph.data import files
from models.knowledge_graph.data.files import Bounds, FeatureTable, Masks
from models.tensors import write_npz
from protocol.errors import Misconfigured
from tests.support.methods.graph_cases import HOUSE, named

NAMES = np.array(["boiler", "pump"])
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_facts_come_back_as_they_were_written(path):
    files.write_triples(path, HOUSE)
    assert files.read_triples(path) == files.Facts(HOUSE, lines=6, duplicates=0)
    assert path.read_bytes().count(b"\n") == 6
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_blank_lines_and_comments_are_skipped_and_duplicates_counted(path):
    path.write_bytes(
        "\ufeff# head, relation, tail\r\n\r\npump\tfeeds\tboiler\r\n \t \n"
        " pump \tfeeds\tboiler\nZoe\u0308\tsees\tpump\nZo\u00eb\tsees\tpump".encode()
    )
    facts = files.read_triples(path)
    assert facts == files.Facts((("pump", "feeds", "boiler"), ("Zoë", "sees", "pump")), lines=7, duplicates=2)


def test_a_file_may_have_no_facts(path):
    path.write_bytes(b"")
    assert files.read_triples(path) == files.Facts((), 0, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"pump\tfeeds", "line 2 has 2 columns, not 3"),
        (b"pump\tfeeds\tboiler\tnow", "line 2 has 4 columns"),
        (b"pump feeds boiler", "line 2 has 1 columns"),
        (b"pump\t\tboiler", "line 2, relation is empty"),
        (b"pump\tfeeds\tboi\x07ler", r"line 2, tail 'boi\\x07ler' holds the control character U\+0007"),
        (b"pump\tfeeds\tboiler\x00", r"U\+0000"),
        (b"\xff\xfe\tfeeds\tboiler", "line 2 is not UTF-8"),
        (b"\xed\xa0\x80\tfeeds\tboiler", "line 2 is not UTF-8"),
        (b"p" * 2000 + b"\tfeeds\tboiler", "line 2, head 'ppp"),
        (b"p" * 100_000, "line 2 has over 3328 bytes"),
    ],
)
def test_a_line_that_is_no_fact_is_named(path, line, words):
    path.write_bytes(b"pump\tfeeds\tboiler\n" + line + b"\n")
    with pytest.raises(Misconfigured, match=words) as refused:
        files.read_triples(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 600 + len(str(path))


def test_too_many_lines_are_not_read(path):
    files.write_triples(path, HOUSE)
    assert len(files.read_triples(path, Bounds(lines=6)).triples) == 6
    with pytest.raises(Misconfigured, match="more than 5 lines"):
        files.read_triples(path, Bounds(lines=5))


@pytest.mark.parametrize("read", [files.read_triples, files.read_features, files.read_masks])
def test_a_file_that_is_not_there_is_named(path, read):
    with pytest.raises(Misconfigured, match="file: cannot be read as"):
        read(path)


@pytest.mark.parametrize("head", ["# pump", " pump", "pu\tmp", "Zoe\u0308", ""])
def test_a_name_that_would_not_come_back_is_not_written(path, head):
    with pytest.raises(ValueError, match=r"could not be read back|is empty|control character"):
        files.write_triples(path, [(head, "feeds", "boiler")])
    assert not [*path.parent.iterdir()]


def test_features_come_back_as_they_were_written(path):
    features = named({"boiler": [1.0, -2.5], "Zoë": [0.0, 3.0]})
    files.write_features(path, features)
    back = files.read_features(path)
    assert back.entities == features.entities
    assert back.values_nF.dtype == np.float32
    assert np.array_equal(back.values_nF, features.values_nF)


def test_features_may_be_integers_or_wider_floats(path):
    for dtype in (np.int8, np.float64, np.float16, np.bool_):
        write_npz(path, {"entity": NAMES, "values": np.ones((2, 3), dtype)})
        assert files.read_features(path).values_nF.tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"entity": NAMES}, "key 'values' is missing"),
        ({"entity": NAMES, "values": VALUES, "more": VALUES}, "key 'more' is not known"),
        ({"entity": NAMES, "values": VALUES[:1]}, r"key 'values' is float32 \(1, 3\), not \(2, F\)"),
        ({"entity": NAMES, "values": VALUES[:, 0]}, "key 'values'"),
        ({"entity": NAMES, "values": VALUES[:, :0]}, "key 'values'"),
        ({"entity": NAMES, "values": VALUES.astype(np.complex64)}, "key 'values'"),
        ({"entity": NAMES, "values": np.array([["1"], ["2"]])}, "key 'values' is <U1"),
        ({"entity": NAMES, "values": np.array([[0.0], [np.nan]])}, r"row 1 \('pump'\) is not finite"),
        ({"entity": NAMES, "values": np.array([[1e300], [0.0]])}, r"row 0 \('boiler'\) is not finite"),
        ({"entity": NAMES.astype("S"), "values": VALUES}, r"key 'entity' is \|S6"),
        ({"entity": NAMES[:, None], "values": VALUES}, "key 'entity'"),
        ({"entity": np.array([1, 2]), "values": VALUES}, "key 'entity' is int64"),
        ({"entity": np.array(["pump", " pump"]), "values": VALUES}, "'pump' is in rows 0 and 1"),
        ({"entity": np.array(["pump", ""]), "values": VALUES}, "key 'entity', row 1 is empty"),
        ({"entity": np.array(["pump", "a\nb"]), "values": VALUES}, r"row 1 'a\\nb' holds the control"),
        (
            {"entity": np.array([0x110000, 65], "<u4").view("<U1"), "values": VALUES},
            "holds 0x110000, which is no",
        ),
        (
            {"entity": np.array([0x110000, 65], ">u4").view(">U1"), "values": VALUES},
            "holds 0x110000, which is no",
        ),
        (
            {"entity": np.array([0xD800, 65], "<u4").view("<U1"), "values": VALUES},
            r"row 0 '\\ud800' holds the",
        ),
    ],
)
def test_features_in_another_form_are_refused_by_key(path, arrays, words):
    write_npz(path, arrays)
    with pytest.raises(Misconfigured, match=words) as refused:
        files.read_features(path)
    assert str(refused.value).startswith(str(path))


def test_features_beyond_the_bounds_are_not_read(path):
    files.write_features(path, FeatureTable(("a", "b", "c"), np.zeros((3, 4), np.float32)))
    for bounds, words in (
        (Bounds(entities=2), "key 'entity'"),
        (Bounds(width=3), "key 'values'"),
        (Bounds(npz_bytes=100), "at most 65536 of 100"),
    ):
        with pytest.raises(Misconfigured, match=words):
            files.read_features(path, bounds)


def test_pickled_names_are_never_read(path):
    with path.open("wb") as file:
        np.savez(file, entity=np.array(["pump", None], object), values=VALUES)
    with pytest.raises(Misconfigured, match="cannot be read as features"):
        files.read_features(path)


def test_masks_come_back_as_they_were_written(path):
    masks = Masks(("boiler", "pump"), ("text",), np.array([[True], [False]]))
    files.write_masks(path, masks)
    back = files.read_masks(path)
    assert (back.entities, back.modalities) == (masks.entities, masks.modalities)
    assert back.present_nM.tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"present": np.ones((2, 2), np.bool_)}, r"key 'present' is bool \(2, 2\), not bool \(2, 1\)"),
        ({"present": np.ones((2, 1))}, "key 'present' is float64"),
        ({"modality": np.array([f"m{i}" for i in range(65)])}, "key 'modality'"),
        ({"entity": np.array(["pump", "pump"])}, "key 'entity'"),
    ],
)
def test_masks_in_another_form_are_refused_by_key(path, change, words):
    arrays = {"entity": NAMES, "modality": np.array(["text"]), "present": np.ones((2, 1), np.bool_)}
    write_npz(path, arrays | change)
    with pytest.raises(Misconfigured, match=words):
        files.read_masks(path)
