"""The device's graph, read from files that change under its feet."""

import os
import random
import tracemalloc

import numpy as np
import pytest

from edge_agent.identity import fleet_secret as secrets
from edge_agent.knowledge_graph import fact_files
from edge_agent.knowledge_graph.fact_files import FactFiles, stat_of
from edge_agent.knowledge_graph.watcher import reader_of
from models.knowledge_graph.data.files import BOUNDS, Masks, facts_in, write_features, write_masks
from models.knowledge_graph.data.keys import key
from models.knowledge_graph.data.merging import MergeRoom
from protocol.errors import Misconfigured
from protocol.tasks.options import Features, KnowledgeGraphTask
from tests.support.agent.graph import graph_task, lines, settings_of, write_house
from tests.support.methods.graph_cases import HOUSE, named

REST = 1.0
"""Seconds after which a file counts as written."""


class Device:
    """Looks at the files with a clock of its own."""

    def __init__(self, folder, task=None, **keys):
        self.facts = write_house(folder)
        self.reader = reader_of(task or graph_task(), settings_of(folder, **keys), REST)
        self.now = 100.0

    def look(self, after=0.0):
        self.now += after
        return self.reader.read_if_changed(self.now)

    def append(self, text):
        with self.facts.open("a", encoding="utf-8") as file:
            file.write(text)


def facts_of(snapshot) -> set[tuple[str, str, str]]:
    graph = snapshot.graph
    return {
        (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.triples_N3.tolist()
    }


def test_names_become_keys_and_features_find_their_entities(tmp_path):
    found = Device(tmp_path).look()
    graph, keyed = found.graph, found.keyed
    assert facts_of(found) == set(HOUSE)
    boiler = graph.entities.index("boiler")
    assert keyed.entity_keys_E16[boiler].tobytes() == key(found.secret, "boiler")
    assert keyed.features["text"][boiler].tolist() == [1, 0]
    assert keyed.present_EM.sum() == 2, "of the well there is no fact"
    assert found.counts.strangers == 1
    assert found.notes == ("1 rows of features or masks are of entities without a fact",)
    assert (found.told.samples, found.told.counts["text"]) == (6, (5,))


def test_appended_facts_are_merged_and_indices_stay(tmp_path, monkeypatch):
    device, read = Device(tmp_path), []
    before = device.look()
    assert device.look(after=9) is None, "nothing has changed"

    def watched(*args):
        for triple in facts_in(*args):
            read.append(triple)
            yield triple

    monkeypatch.setattr(fact_files, "facts_in", watched)
    new = [("well", "feeds", "pump"), ("pump", "stands_in", "cellar")]
    device.append(lines(new))
    after = device.look()
    assert read == new, "and nothing else"
    size = len(before.graph.entities)
    assert after.graph.entities == (*before.graph.entities, "well")
    assert np.array_equal(after.keyed.entity_keys_E16[:size], before.keyed.entity_keys_E16)
    assert np.array_equal(after.graph.triples_N3[:6], before.graph.triples_N3)
    assert facts_of(after) == {*HOUSE, new[0]}
    assert after.keyed.features["text"][size].tolist() == [1, 1], "they were there before its first fact"
    assert (after.counts.duplicates, after.counts.strangers) == (1, 0)
    assert device.look() is None


def test_a_fact_that_was_taken_out_is_gone_and_one_that_was_changed_too(tmp_path):
    device = Device(tmp_path)
    device.look()
    text = lines(HOUSE[1:]).replace("thermometer 1", "thermometer 2")
    device.facts.write_text(text, encoding="utf-8")
    assert device.look() is None, "it may be in the middle of a change"
    found = facts_of(device.look(after=REST))
    assert ("thermometer 2", "measures", "boiler") in found
    assert len(found) == 5
    assert "thermometer 1" not in {name for fact in found for name in fact}


def test_a_file_that_is_written_anew_in_its_place_is_no_smaller_graph_meanwhile(tmp_path):
    device = Device(tmp_path)
    device.look()
    device.facts.write_text("")
    for fact in (*HOUSE[1:], ("well", "feeds", "pump")):
        assert device.look(after=REST / 2) is None
        device.append(lines([fact]))
    assert device.look() is None
    assert facts_of(device.look(after=REST)) == {*HOUSE[1:], ("well", "feeds", "pump")}
    for second in range(13):
        device.facts.write_text(lines([("well", "feeds", f"pump {second}")]))
        if second < 12:
            assert device.look(after=REST) is None
    with pytest.raises(Misconfigured, match=r"facts\.tsv: it is rewritten in place .* and rename it"):
        device.look(after=REST)
    (tmp_path / "part").write_text(lines(HOUSE))
    (tmp_path / "part").replace(device.facts)
    assert facts_of(device.look()) == set(HOUSE), "whole at once"


def test_half_a_line_is_no_fact_until_it_ends_or_rests(tmp_path):
    device = Device(tmp_path)
    device.append("valve\tstands_in\tcel")
    assert facts_of(device.look()) == set(HOUSE)
    device.append("lar\nvalve\tis\tred")
    assert facts_of(device.look()) == {*HOUSE, ("valve", "stands_in", "cellar")}
    assert ("valve", "is", "red") in facts_of(device.look(after=REST)), "the end of the file ends it"
    device.append("dish\n")
    found = facts_of(device.look())
    assert ("valve", "is", "reddish") in found
    assert ("valve", "is", "red") not in found, "a name that was cut leaves nothing behind"


def test_a_last_line_counts_when_its_own_file_rests_whatever_others_do(tmp_path):
    (tmp_path / "still.tsv").write_text("valve\tis\tred")
    device = Device(tmp_path, triples='["facts.tsv", "still.tsv"]')
    assert ("valve", "is", "red") not in facts_of(device.look())
    device.append(lines([("well", "feeds", "pump")]))
    assert {("valve", "is", "red"), ("well", "feeds", "pump")} <= facts_of(device.look(after=REST))


def test_a_broken_line_is_told_at_rest_with_its_number_and_nothing_is_lost(tmp_path):
    device = Device(tmp_path)
    device.look()
    device.append("well\tfeeds\tpump\nno fact\n")
    assert device.look() is None, "it may be in the middle of a change"
    for _ in range(2):
        with pytest.raises(Misconfigured, match=r"facts\.tsv: line 8 has 1 columns, not 3"):
            device.look(after=REST)
    device.facts.write_text(lines([*HOUSE, ("well", "feeds", "pump")]), encoding="utf-8")
    assert facts_of(device.look()) == {*HOUSE, ("well", "feeds", "pump")}


def test_what_stays_wrong_is_told_though_another_file_never_rests(tmp_path):
    device = Device(tmp_path)
    device.look()
    (tmp_path / "text.npz").write_bytes(b"half")
    for second in range(12):
        device.append(lines([("well", "feeds", f"pump {second}")]))
        assert device.look(after=REST) is None
    for second in range(2):
        device.append(lines([("pump", "feeds", f"pump {second}")]))
        with pytest.raises(Misconfigured, match=r"text\.npz: cannot be read as features"):
            device.look(after=REST)
    write_features(tmp_path / "text.npz", named({"boiler": [1.0, 0.0]}))
    assert len(device.look().graph) == len(HOUSE) + 14, "and nothing was lost meanwhile"


def test_a_path_that_the_system_refuses_to_look_at_is_told_and_a_pipe_is_not_waited_for(tmp_path):
    device = Device(tmp_path, triples=f'["facts.tsv", "{"x" * 300}"]')
    device.look()
    with pytest.raises(Misconfigured, match="no such file, or access is denied"):
        device.look(after=REST)
    other = tmp_path / "other"
    other.mkdir()
    device = Device(other)
    (other / "text.npz").unlink()
    os.mkfifo(other / "text.npz")
    device.look()
    with pytest.raises(Misconfigured, match=r"text\.npz: cannot be read as features .*no regular file"):
        device.look(after=REST)


def test_what_was_taken_and_is_changed_while_the_rest_is_read_is_read_anew(tmp_path, monkeypatch):
    device = Device(tmp_path)
    device.look()
    text = lines([*HOUSE, ("well", "feeds", "pump")]).replace("thermometer 1", "thermometer 2")
    with monkeypatch.context() as patch:
        patch.setattr(fact_files, "_can_continue", lambda *_: True)  # it did when it was looked at
        device.facts.write_text(text, encoding="utf-8")
        assert device.look() is None
    found = facts_of(device.look(after=REST))
    assert ("thermometer 2", "measures", "boiler") in found
    assert len(found) == len(HOUSE) + 1


def test_folders_count_all_their_tables_as_they_come_and_go(tmp_path):
    inside = tmp_path / "more"
    inside.mkdir()
    (inside / "b.tsv").write_text(lines([("b", "is", "b2")]))
    (inside / "notes.txt").write_text("no facts")
    (inside / ".#b.tsv").symlink_to("somebody@host:1")
    device = Device(tmp_path, triples='["facts.tsv", "more"]')
    before = device.look()
    assert facts_of(before) == {*HOUSE, ("b", "is", "b2")}
    (inside / "a.tsv").write_text(lines([("a", "is", "b")]))
    assert device.look().graph.entities == (*before.graph.entities, "a"), "whatever the order of files"
    (inside / "b.tsv").unlink()
    assert facts_of(device.look()) == {*HOUSE, ("a", "is", "b")}


def test_a_folder_that_can_be_looked_into_again_is_news_though_no_file_has_changed(tmp_path, monkeypatch):
    device = Device(tmp_path)
    before = device.look()
    assert device.look(after=REST) is None
    with monkeypatch.context() as patch:
        patch.setattr(fact_files, "_MAX_FILES", 0)
        with pytest.raises(Misconfigured, match=r"graph\.triples: 1 files, at most 0 are read"):
            device.look()
    assert device.look() is before
    assert device.look() is None


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("facts.tsv", None, r"graph\.triples: .*facts\.tsv: no such file"),
        ("facts.tsv", b"\xff\tb\tc\n", r"facts\.tsv: line 1 is not UTF-8"),
        ("text.npz", None, r"text\.npz: cannot be read as features"),
        ("text.npz", b"PK\x03\x04 half", r"text\.npz: cannot be read as features"),
        ("text.npz", {"boiler": [1.0, 2.0, 3.0]}, r"text\.npz: .* has 3 numbers .* text, dim = 2"),
        ("fleet.secret", None, r"fleet\.secret: the fleet's secret is missing; lichen agent secret"),
        ("fleet.secret", b"password", r"fleet\.secret: not the secret of a fleet"),
    ],
)
def test_what_is_wrong_is_named_and_is_right_again_when_it_is_mended(tmp_path, name, write, words):
    device = Device(tmp_path)
    device.look()
    good = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if isinstance(write, bytes):
        (tmp_path / name).write_bytes(write)
    elif write is not None:
        write_features(tmp_path / name, named(write))
    assert device.look() is None
    with pytest.raises(Misconfigured, match=words):
        device.look(after=REST)
    (tmp_path / name).write_bytes(good)
    assert facts_of(device.look()) == set(HOUSE)
    assert device.look(after=REST) is None


def test_masks_take_features_away_and_may_name_those_that_are_not_read(tmp_path):
    device = Device(tmp_path, graph='masks = "masks.npz"')
    write_masks(tmp_path / "masks.npz", Masks(("pump", "boiler"), ("text",), np.array([[False], [True]])))
    found = device.look()
    shown = {found.graph.entities[e] for e in np.flatnonzero(found.keyed.present_EM[:, 0])}
    assert shown == {"boiler"}
    write_masks(tmp_path / "masks.npz", Masks(("pump",), ("picture",), np.array([[True]])))
    device.look()
    with pytest.raises(Misconfigured, match=r"masks\.npz: masks name modality 'picture'"):
        device.look(after=REST)


def test_a_modality_that_is_not_read_counts_as_missing(tmp_path):
    found = Device(tmp_path, more='learn = { inputs = ["picture"] }').look()
    assert not found.keyed.present_EM.any()
    assert not found.keyed.features["text"].any()
    assert "features that are not read here: text" in found.notes


def test_another_secret_gives_other_keys(tmp_path):
    device = Device(tmp_path)
    before = device.look()
    (tmp_path / "fleet.secret").unlink()
    secrets.make(tmp_path / "fleet.secret")
    after = device.look()
    assert after.graph.entities == before.graph.entities
    assert not (after.keyed.entity_keys_E16 == before.keyed.entity_keys_E16).all(axis=1).any()


def test_what_is_beyond_the_tasks_room_is_left_out_and_told(tmp_path):
    shape = KnowledgeGraphTask(features=(Features(name="text", dim=2),), max_entities=4, max_triples=3)
    device = Device(tmp_path, graph_task(graph=shape))
    found = device.look()
    assert len(found.graph) == 3
    assert len(found.graph.entities) <= 4
    assert "facts were left out: there is room for 4 entities" in found.notes[0]


def test_any_course_of_changes_ends_with_what_the_files_hold(tmp_path):
    rng = random.Random(7)
    path = tmp_path / "facts.tsv"
    path.write_text("")
    files = FactFiles((path,), MergeRoom(), BOUNDS)
    held: list[tuple[str, str, str]] = []
    for _ in range(150):
        new = [tuple(f"{kind}{rng.randrange(6)}" for kind in "ere") for _ in range(rng.randrange(3))]
        rested = {path} if rng.random() < 0.5 else set()
        match rng.choice(["append", "append", "change", "beside"]):
            case "append":
                held += new
                with path.open("a") as file:
                    file.write(lines(new))
            case "change":
                held = rng.sample(held, len(held) // 2) + new
                path.write_text(lines(held))
                rested = {path}
            case _:  # written beside, and renamed
                held += new
                (tmp_path / "part").write_text(lines(held))
                (tmp_path / "part").replace(path)
        assert files.read({path: stat_of(path)}, rested)
        graph = files.graph
        named_facts = {
            (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.triples_N3
        }
        assert named_facts == set(held)


def test_facts_are_in_memory_by_name_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(fact_files, "_CHUNK", 500)
    count = 20_000
    path = tmp_path / "facts.tsv"
    path.write_text(
        "".join(f"{'long name of ' * 20}{i % 97}\tr\t{i % 89 * 1000 + i // 89}\n" for i in range(count))
    )
    files = FactFiles((path,), MergeRoom(entities=50), BOUNDS)
    tracemalloc.start()
    try:
        files.read({path: stat_of(path)}, (path,))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert files.counts.no_room > count / 2
    assert most < path.stat().st_size / 5, "the file has 5 MB"


def test_an_npz_that_would_fill_the_memory_is_not_unpacked(tmp_path):
    shape = KnowledgeGraphTask(features=(Features(name="text", dim=2),), max_entities=100)
    device = Device(tmp_path, graph_task(graph=shape))
    with (tmp_path / "text.npz").open("wb") as file:
        np.savez_compressed(file, entity=np.array(["boiler"]), values=np.zeros((1, 1 << 23), np.float32))
    device.look()
    with pytest.raises(Misconfigured, match=r"text\.npz: cannot be read as features"):
        device.look(after=REST)
