"""The rows and files of accepted updates, on a real database."""

import pytest
import sqlalchemy as sa

from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.storage import schema, update_journal
from coordinator.storage.database import Database
from coordinator.storage.update_journal import MAX_WITHDRAWN, Journal
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.frames.headers import UpdateHeader

pytestmark = pytest.mark.both_engines

UNUSABLE = Refused(Reason.WRONG_DIGEST, "it rotted")


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "c.sqlite3") as made:
        yield made


@pytest.fixture
def journal(store, tmp_path):
    return Journal(store, tmp_path / "rounds")


def name(text: str) -> str:
    return digest(text.encode())


def update(device: str, round_: int = 1, data: str = "", file: str = "", at: int = 0) -> ReceivedUpdate:
    number = ord(device[-1])
    header = UpdateHeader(
        task="tiny",
        method="qqr",
        device=device,
        round=round_,
        base="0" * 64,
        samples=number,
        counts={},
        missing={},
        quality={},
        metrics={"loss": float(number)},
        extra={"mine": device},
    )
    return ReceivedUpdate(header, name(data or device), 5, file, at)


def withdraw(journal, device: str, round_: int = 1, wall: float = 0.0, data: str = "") -> str:
    """The digest of an update that was accepted, and then was lost."""
    journal.record(update(device, round_, data), wall)
    journal.mark_lost(round_, device, UNUSABLE, wall)
    return name(data or device)


def test_a_frame_that_came_alone_has_a_file_of_its_own_and_several_have_one(journal, tmp_path) -> None:
    alone, *several = [(name(text), text.encode()) for text in ("one", "two", "three")]
    assert journal.write_all(3, [alone]) == [("", 0)]
    assert journal.path(3, alone[0]) == tmp_path / "rounds" / "3" / alone[0]
    assert journal.path(3, alone[0]).read_bytes() == b"one"
    places = journal.write_all(3, several)
    assert len({file for file, _ in places}) == 1
    for (file, at), (_, frame) in zip(places, several, strict=True):
        assert (tmp_path / "rounds" / "3" / file).read_bytes()[at : at + len(frame)] == frame


def test_a_frame_that_comes_again_counts_again(journal) -> None:
    one, two = (name(text) for text in ("one", "two"))
    for frame in (one, two):
        journal.mark_void(1, frame)
    journal.write_all(1, [(one, b"one")])
    folder = journal.path(1, one).parent
    assert sorted(file.name for file in folder.iterdir()) == sorted([one, f"{two}.lost"])
    journal.write_all(1, [(one, b"one"), (two, b"two")])
    assert not list(folder.glob("*.lost"))


def test_an_update_is_found_by_device_by_round_and_by_digest(journal) -> None:
    for device, round_ in (("b", 1), ("a", 1), ("a", 2), ("c", 1)):
        journal.record(update(device, round_, f"{device}{round_}"), 7.0)
    journal.mark_lost(1, "c", UNUSABLE, 8.0)
    one = {"a": name("a1"), "b": name("b1")}
    assert journal.digests_of(1) == one
    assert journal.digests([(1, "a"), (1, "c"), (2, "a"), (2, "b")]) == {
        (1, "a"): name("a1"),
        (2, "a"): name("a2"),
    }
    assert [journal.find("a", name(text)) for text in ("a1", "a2", "b1")] == [1, 2, None]
    assert journal.find("c", name("c1")) is None, "it was lost"
    assert [journal.digest_of(1, device) for device in "abcd"] == [name("a1"), name("b1"), None, None]


def test_entries_are_of_those_that_are_asked_for_in_the_order_of_their_names(journal, tmp_path) -> None:
    for device in "cab":
        journal.record(update(device), 0.0)
    journal.record(update("d", file="many.group", at=9), 0.0)
    journal.record(update("a", 2, "again"), 0.0)
    folder = tmp_path / "rounds" / "1"
    found = journal.entries(1, ["d", "c", "a"])
    assert [(one.device, one.digest, one.path, one.at, one.size) for one in found] == [
        ("a", name("a"), folder / name("a"), 0, None),
        ("c", name("c"), folder / name("c"), 0, None),
        ("d", name("d"), folder / "many.group", 9, 5),
    ]
    assert found[2].folder == folder


def test_samples_and_metrics_are_of_those_that_are_asked_for(journal) -> None:
    for device in "abc":
        journal.record(update(device), 0.0)
    journal.record(update("b", 2), 0.0)
    assert sorted(journal.told(1, "ac")) == [(97, {"loss": 97.0}), (99, {"loss": 99.0})]


def test_the_methods_own_message_is_kept_only_where_it_is_asked_for(store, journal, tmp_path) -> None:
    journal.record(update("a"), 0.0)
    assert store.rows(sa.select(schema.messages)) == []
    Journal(store, tmp_path, keeps_messages=True).record(update("b", 4), 0.0)
    assert store.rows(sa.select(schema.messages)) == [{"device": "b", "round": 4, "extra": {"mine": "b"}}]


def test_what_was_withdrawn_is_told_to_its_device_until_it_confirms(store, journal, tmp_path) -> None:
    first, second = withdraw(journal, "a", 1, 5.0, "1"), withdraw(journal, "a", 2, 6.0, "2")
    journal.record(update("b"), 0.0)
    told = journal.withdrawn("a")
    assert [(one["digest"], one["round"], one["detail"]) for one in told] == [
        (first, 1, "it rotted"),
        (second, 2, "it rotted"),
    ]
    assert told[0]["reason"] == Reason.WRONG_DIGEST.value
    again = Journal(store, tmp_path / "rounds")
    assert [again.has_unconfirmed(device) for device in "ab"] == [True, False]
    again.confirmed("a", [second])
    assert [one["digest"] for one in again.withdrawn("a")] == [first]
    assert again.has_unconfirmed("a")
    again.confirmed("a", [first])
    assert again.withdrawn("a") == []
    assert not again.has_unconfirmed("a")


def test_only_the_update_of_that_device_and_round_is_lost(store, journal) -> None:
    for device, round_ in (("a", 1), ("b", 1), ("a", 2)):
        journal.record(update(device, round_), 0.0)
    journal.mark_lost(1, "a", UNUSABLE, 0.0)
    table = schema.updates
    lost = store.rows(sa.select(table.c.device, table.c.round).where(table.c.lost != ""))
    assert lost == [{"device": "a", "round": 1}]
    journal.mark_lost(1, "nobody", UNUSABLE, 0.0)
    assert not journal.has_unconfirmed("nobody")


def test_the_same_bytes_again_count_and_are_withdrawn_no_more(journal) -> None:
    withdraw(journal, "a")
    assert journal.digest_of(1, "a") is None
    journal.record(update("a"), 1.0)
    assert journal.digest_of(1, "a") == name("a")
    assert journal.withdrawn("a") == []
    assert not journal.has_unconfirmed("a")


def test_of_one_device_the_newest_withdrawn_updates_are_remembered(journal) -> None:
    withdraw(journal, "b")
    names = [
        withdraw(journal, "a", number, float(number), str(number)) for number in range(MAX_WITHDRAWN + 3)
    ]
    assert [one["digest"] for one in journal.withdrawn("a")] == names[3:]
    assert len(journal.withdrawn("b")) == 1, "another device's stay"


def test_of_all_devices_the_newest_withdrawn_updates_are_remembered(journal, monkeypatch) -> None:
    monkeypatch.setattr(update_journal, "MAX_WITHDRAWN_OF_ALL", 10)
    devices = [f"d{number:02}" for number in range(10)]
    for number, device in enumerate(devices):
        withdraw(journal, device, wall=float(number))
    assert all(journal.withdrawn(device) for device in devices), "as many as may be"
    withdraw(journal, "last", wall=99.0)
    assert [device for device in devices if not journal.withdrawn(device)] == devices[:2]


def rounds_left(store) -> list[int]:
    table = schema.updates
    return [row["round"] for row in store.rows(sa.select(table.c.round).distinct().order_by(table.c.round))]


def test_whole_rounds_leave_the_history_the_oldest_first(store, journal) -> None:
    for round_ in range(1, 7):
        for device in "ab":
            journal.record(update(device, round_), 0.0)
    journal.forget_headers(before=5, keep=8)
    assert rounds_left(store) == [1, 2, 3, 4, 5, 6], "just as many as may stay"
    journal.forget_headers(before=5, keep=4)
    assert rounds_left(store) == [3, 4, 5, 6]
    journal.forget_headers(before=5, keep=3)
    assert rounds_left(store) == [4, 5, 6], "a round leaves whole"


def test_by_bytes_rounds_leave_until_only_the_newest_are_there(store, journal) -> None:
    for round_ in range(1, 40):
        journal.record(update("a", round_), 0.0)
    journal.forget_headers(before=30, keep=1000, most_bytes=journal.database_bytes())
    assert rounds_left(store) == list(range(1, 40)), "they fit"
    journal.forget_headers(before=30, keep=1000, most_bytes=1)
    assert rounds_left(store) == list(range(30, 40))


def test_frames_of_rounds_that_are_folded_go_and_nothing_else(journal, tmp_path) -> None:
    journal.forget_before(3)
    for round_ in (1, 2, 3, 10):
        journal.write(round_, name("a"), b"a")
    (tmp_path / "rounds" / "notes").mkdir()
    journal.forget_before(3)
    assert sorted(folder.name for folder in (tmp_path / "rounds").iterdir()) == ["10", "3", "notes"]
