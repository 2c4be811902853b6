"""The loaders of graphs: on small made copies, and on the real ones where they are."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import fb15k237, small_graphs
from lichen_lab.simulation.data_cli import app
from models.knowledge_graph.data.partition import partition
from protocol.errors import LichenError, Misconfigured, Reason, Refused, Transient

ENTITIES = ("/m/01", "/m/02", "/m/03")
TEXTS = (("Haiti", "country in the Caribbean"), ("Cuba", "country in the Caribbean"), ("Ada", ""))
PARTS = {"train": "a_b\tr\tc\nc\ts\ta_b\n", "valid": "c\tr\td_e\n", "test": "a_b\tr\td_e\n"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the data sets; nothing else is looked at."""
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("LICHEN_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(small_graphs.WHEEL_VARIABLE, raising=False)
    monkeypatch.setattr(locations, "beside_checkout", lambda: tmp_path / "none")
    monkeypatch.setattr(small_graphs, "find_spec", lambda _name: None)
    return root


def facts() -> dict[str, Any]:
    return {
        "train": np.array([[0, 0, 1], [1, 1, 2]], np.int32),
        "valid": np.array([[2, 0, 1]], np.int32),
        "test": np.zeros((0, 3), np.int32),
        "entities": np.array(ENTITIES),
        "relations": np.array(["near", "knows"]),
    }


def numbers() -> dict[str, Any]:
    return {
        "entity": np.array([0, 0, 1, 0], np.int32),
        "attribute": np.array([0, 1, 0, 1], np.int16),
        "value": np.array([5.0, 1.0, 7.0, 3.0]),
        "attributes": np.array(["area", "height"]),
    }


def texts(rows: list[str] | None = None) -> bytes:
    header = "id\tmid\tname\twikidata_label\twikidata_description\tmore"
    made = [f"{i}\t{e}\t{n}\t\t{d}\t" for i, (e, (n, d)) in enumerate(zip(ENTITIES, TEXTS, strict=True))]
    return gzip.compress(("\n".join([header, *(made if rows is None else rows)]) + "\n").encode())


def write_fb15k(root: Path, **instead: Any) -> None:
    folder = root / "fb15k237"
    folder.mkdir()
    np.savez(folder / fb15k237.FACTS, **facts() | instead.get("facts", {}))
    np.savez(folder / fb15k237.NUMBERS, **numbers() | instead.get("numbers", {}))
    (folder / fb15k237.TEXTS).write_bytes(instead.get("texts", texts()))


def test_fb15k237_has_its_parts_names_texts_and_numbers(root: Path) -> None:
    write_fb15k(root)
    loaded = fb15k237.load(text_width=2)
    assert [part.tolist() for part in loaded.parts] == [[[0, 0, 1], [1, 1, 2]], [[2, 0, 1]], []]
    assert loaded.titles == ("Haiti", "Cuba", "Ada")
    assert loaded.graph.entities == ENTITIES
    assert loaded.graph.modalities == ("text", "numeric")
    text_EF = loaded.graph.features["text"]
    assert text_EF[0] @ text_EF[1] > text_EF[0] @ text_EF[2]
    # area: 5 of Haiti below 7 of Cuba; height: one value alone (the mean of two) lies in the middle
    assert loaded.graph.features["numeric"].tolist() == [[-0.5, 0, 1, 1], [0.5, 0, 1, 0], [0, 0, 0, 0]]
    assert loaded.graph.present_EM.tolist() == [[True, True], [True, True], [True, False]]


def test_text_features_are_kept_and_made_anew_when_the_texts_change(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fb15k(root)
    first = fb15k237.load(text_width=2).graph.features["text"]
    with monkeypatch.context() as patch:
        patch.setattr(fb15k237.TextEncoder, "fit", lambda *_: pytest.fail("it was kept"))
        assert np.array_equal(fb15k237.load(text_width=2).graph.features["text"], first)
    rows = [f"{i}\t{entity}\tsea\t\twater\t" for i, entity in enumerate(ENTITIES)]
    (root / "fb15k237" / fb15k237.TEXTS).write_bytes(texts(rows))
    assert not np.array_equal(fb15k237.load(text_width=2).graph.features["text"], first)


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ({"facts": {"train": np.zeros((2, 3))}}, r"triples\.npz: key 'train' must be integers"),
        ({"facts": {"valid": np.zeros((2, 2), int)}}, "key 'valid'"),
        ({"facts": {"test": np.array([[0, 2, 1]])}}, r"triples\.npz: triples_N3 has indices .* 2 relations"),
        ({"facts": {"entities": np.array(["a", "a", "b"])}}, "entities: 1 names occur more than once"),
        ({"facts": {"relations": np.array([1, 2])}}, "key 'relations' is int64"),
        ({"numbers": {"value": np.array([1.0, np.inf, 1.0, 1.0])}}, r"attributes\.npz: .*'value' finite"),
        ({"numbers": {"entity": np.array([0, 0, 3, 0])}}, "key 'entity' must hold indices below 3"),
        ({"numbers": {"attribute": np.array([0, -1, 0, 1])}}, "key 'attribute' must hold indices below 2"),
        ({"numbers": {"attribute": np.array([0, 1])}}, "must be as long"),
        ({"numbers": {"value": np.array(["1"] * 4)}}, "key 'value' must be one axis of numbers"),
        ({"texts": b"no gzip"}, r"entities\.tsv\.gz: cannot be read"),
        ({"texts": texts()[:-9]}, "cannot be read"),
        ({"texts": gzip.compress(b"\xff\xff")}, "cannot be read"),
        ({"texts": texts([])}, "3 lines more"),
        (
            {"texts": texts(["0\t/m/01\ta\t\t", "1\t/m/03\tb\t\t", "2\t/m/02\tc\t\t"])},
            "line 3 is not about /m/02",
        ),
        ({"texts": texts(["0\t/m/01\ta"] * 3)}, "line 2 is not about /m/01"),
    ],
)
def test_fb15k237_in_another_form_is_refused_by_file_and_key(
    root: Path, instead: dict[str, Any], words: str
) -> None:
    write_fb15k(root, **instead)
    with pytest.raises(Misconfigured, match=words):
        fb15k237.load(text_width=2)


def test_ranks_are_shared_by_equal_values_and_do_not_see_the_unit() -> None:
    entity_n, attribute_n = np.arange(5), np.zeros(5, np.int64)
    value_n = np.array([10.0, 10.0, 1e9, -3.0, 40.0])
    x_EF, has_E = fb15k237.ranked(entity_n, attribute_n, value_n, (6, 1))
    assert x_EF[:, 0].tolist() == pytest.approx([-0.2, -0.2, 0.8, -0.8, 0.4, 0])
    assert x_EF[:, 1].tolist() == has_E.tolist() == [1, 1, 1, 1, 1, 0]
    assert np.array_equal(x_EF, fb15k237.ranked(entity_n, attribute_n, value_n * 3 - 7, (6, 1))[0])


def write_wheel(path: Path, parts: dict[str, str] = PARTS) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("pykeen/__init__.py", "raise RuntimeError('pykeen was executed')")
        for name in ("umls", "kinships"):
            for part, text in parts.items():
                wheel.writestr(f"pykeen/datasets/{name}/{part}.txt", text)
    return path


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the made parts had been published."""
    digests = tuple(hashlib.sha256(PARTS[part].encode()).hexdigest() for part in small_graphs.PARTS)
    monkeypatch.setattr(small_graphs, "SHA256", dict.fromkeys(("umls", "kinships"), digests))


@pytest.mark.usefixtures("published")
def test_a_small_graph_is_read_out_of_a_wheel_that_is_not_installed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(small_graphs.WHEEL_VARIABLE, str(write_wheel(root / "pykeen.whl")))
    umls = small_graphs.load("umls", text_width=2)
    assert [part.tolist() for part in umls.parts] == [[[0, 0, 1], [1, 1, 0]], [[1, 0, 2]], [[0, 0, 2]]]
    assert umls.graph.entities == ("a_b", "c", "d_e")
    assert umls.titles == ("a b", "c", "d e")
    assert umls.graph.features["text"].shape == (3, 2)
    assert small_graphs.load("kinships").graph.modalities == ()
    assert "pykeen" not in sys.modules


@pytest.mark.usefixtures("published")
def test_small_graphs_are_found_where_data_lies_and_in_an_installed_package(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(folder: Path) -> None:
        folder.mkdir(parents=True)
        for part, text in PARTS.items():
            (folder / f"{part}.txt").write_text(text)

    with pytest.raises(Misconfigured, match=r"kinships is not here: lichen data fetch small-graphs"):
        small_graphs.load("kinships")
    put(root / "umls")
    put(tmp_path / "site/pykeen/datasets/kinships")
    (tmp_path / "site/pykeen/__init__.py").write_text("raise RuntimeError('pykeen was executed')")
    monkeypatch.setattr(small_graphs, "find_spec", find_spec)
    assert not small_graphs.available()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert len(small_graphs.load("umls").graph) == len(small_graphs.load("kinships").graph) == 4
    assert "pykeen" not in sys.modules


def test_another_text_than_the_published_one_is_not_taken(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(small_graphs.WHEEL_VARIABLE, str(write_wheel(root / "pykeen.whl")))
    with pytest.raises(Misconfigured, match=r"pykeen\.whl: SHA-256 of umls/train\.txt is"):
        small_graphs.load("umls")


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_wheel_that_is_none_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    wheel = root / "pykeen.whl"
    if content is None:
        write_wheel(wheel, {"train": ""})
    else:
        wheel.write_bytes(content)
    monkeypatch.setenv(small_graphs.WHEEL_VARIABLE, str(wheel))
    with pytest.raises(Misconfigured, match=r"LICHEN_PYKEEN_WHEEL: .*pykeen\.whl"):
        small_graphs.load("umls")
    monkeypatch.setenv(small_graphs.WHEEL_VARIABLE, str(root / "none.whl"))
    with pytest.raises(Misconfigured, match=r"none\.whl: there is no such file"):
        small_graphs.load("umls")


@pytest.mark.usefixtures("published")
def test_fetched_graphs_are_found_again(root: Path) -> None:
    assert not small_graphs.available()
    folders = small_graphs.fetch(write_wheel(root / "pykeen.whl"))
    assert folders == tuple(locations.cache_folder() / name for name in ("umls", "kinships"))
    assert small_graphs.available()
    assert len(small_graphs.load("umls").graph) == 4


def test_a_fetch_of_something_else_keeps_nothing(root: Path) -> None:
    with pytest.raises(Refused, match="nothing was kept") as refused:
        small_graphs.fetch(write_wheel(root / "pykeen.whl"))
    assert refused.value.reason is Reason.WRONG_DIGEST
    assert not locations.cache_folder().exists()


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("code", "words"), [(1, "ERROR: no network; or fetch"), (0, "no wheel came"), (None, "more than 300 s")]
)
def test_a_pip_that_fails_or_hangs_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int | None, words: str
) -> None:
    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-P", "-m", "pip"]
        assert {"--no-deps", "download", small_graphs.REQUIREMENT} < set(command)
        if code is None:
            raise subprocess.TimeoutExpired(command, how["timeout"])
        return subprocess.CompletedProcess(command, code, "", "warning\nERROR: no network\n")

    monkeypatch.setattr(small_graphs.subprocess, "run", run)
    with pytest.raises(Transient, match=words):
        small_graphs.fetch()


@pytest.mark.data
def test_fb15k237_is_as_it_was_counted_and_the_papers_clients_are_of_the_papers_size() -> None:
    try:
        loaded = fb15k237.load()
    except Misconfigured as error:
        pytest.skip(str(error))
    graph = loaded.graph
    assert [len(part) for part in loaded.parts] == [272_115, 17_535, 20_466]
    assert (len(graph.entities), len(graph.relations)) == (14_541, 237)
    assert graph.present_EM.sum(axis=0).tolist() == [14_541, 12_402]
    near_E = graph.features["text"] @ graph.features["text"][loaded.titles.index("Dominican Republic")]
    assert "Haiti" in [loaded.titles[e] for e in np.argsort(-near_E)[:8]]
    # MMFeD3-HidE, table 2: on average 79, 12,595 and 103,373 of 3 clients, 23.7, 8,340 and 31,012 of 10
    for clients, relations, entities, triples in ((3, 79, 12_595, 103_373), (10, 23.7, 8_340, 31_012)):
        dealt = partition(graph, clients, seed=0)
        assert np.mean([len(one.graph.relations) for one in dealt]) == pytest.approx(relations)
        assert np.mean([len(one.known()) for one in dealt]) == pytest.approx(triples, abs=1)
        assert np.mean([len(one.graph.entities) for one in dealt]) == pytest.approx(entities, rel=0.05)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "entities", "relations", "parts"),
    [("umls", 135, 46, [5216, 652, 661]), ("kinships", 104, 25, [8544, 1068, 1074])],
)
def test_the_small_graphs_are_as_they_were_counted(
    name: Any, entities: int, relations: int, parts: list[int]
) -> None:
    try:
        loaded = small_graphs.load(name)
    except LichenError as error:
        if os.environ.get(small_graphs.WHEEL_VARIABLE):
            raise
        pytest.skip(str(error))
    assert (len(loaded.graph.entities), len(loaded.graph.relations)) == (entities, relations)
    assert [len(part) for part in loaded.parts] == parts


@pytest.mark.usefixtures("published")
def test_the_command_brings_the_graphs_once_and_lists_them(root: Path) -> None:
    wheel = str(write_wheel(root / "pykeen.whl"))
    words = ["fetch", "small-graphs", "--from", wheel, "--format", "json"]
    done = [CliRunner().invoke(app, words) for _ in range(2)]
    assert [json.loads(one.stdout)["fresh"] for one in done] == [True, False]
    listed = {
        one["name"]: one for one in json.loads(CliRunner().invoke(app, ["ls", "--format", "json"]).stdout)
    }
    assert listed["small-graphs"]["folders"] == json.loads(done[0].stdout)["folders"]
    assert not listed["fb15k-237"]["here"]
