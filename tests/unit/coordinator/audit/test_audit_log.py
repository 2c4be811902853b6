"""The audit log: every action is a row, and no row is changed or removed without a trace."""

import json
import sqlite3
import threading
from contextlib import closing

import pytest

from coordinator.audit.chain import AuditHead, Person, digest_of
from coordinator.audit.log import HEAD, AuditLog, account, read_log, verify_log
from coordinator.audit.tables import OPERATORS
from coordinator.storage.location import Location
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.storage.files import write_atomic

pytestmark = pytest.mark.both_engines

ANN = Person("ann", "operator", "certificate 1f")


def acted(folder, count: int = 4) -> None:
    with AuditLog(folder) as log:
        for number in range(count):
            log.append(ANN, "device.approve", f"pi-{number}", "done")


def change(folder, *statements: str) -> None:
    """Somebody with a tool for the database."""
    with closing(Location.at(folder).shared(OPERATORS)) as shared, shared.change() as tables:
        for one in statements:
            tables.execute(one)


def test_a_row_names_its_further_task_and_the_others_are_as_they_were(tmp_path):
    acted(tmp_path, 2)
    with AuditLog(tmp_path, task="sound") as log, log.acting(ANN, "rounds.hold", "noise"):
        pass
    acted(tmp_path, 1)
    assert [one.task for one in read_log(tmp_path)] == [None, None, "sound", "sound", None]
    with closing(Location.at(tmp_path).shared(OPERATORS)) as shared:
        docs = [json.loads(row["doc"]) for row in shared.rows("SELECT doc FROM audit ORDER BY seq")]
    assert ["task" in one for one in docs] == [False, False, True, True, False]
    assert verify_log(tmp_path).row is None


def test_an_action_is_a_row_before_it_and_one_after_it(tmp_path):
    with AuditLog(tmp_path, wall=lambda: 12.5) as log:
        with log.acting(ANN, "device.approve", "pi") as action:
            [begun] = read_log(tmp_path)
            assert (begun.outcome, begun.of) == ("begun", None)
            action.outcome = "done: it was pending"
        with pytest.raises(Refused), log.acting(ANN, "device.revoke", "pi"):
            raise Refused(Reason.UNKNOWN_DEVICE, "no device pi")
        with pytest.raises(KeyError), log.acting(ANN, "device.revoke", "pi"):
            raise KeyError("a bug")
    rows = read_log(tmp_path)
    assert [(one.seq, one.of, one.outcome) for one in rows] == [
        (1, None, "begun"),
        (2, 1, "done: it was pending"),
        (3, None, "begun"),
        (4, 3, "refused: no device pi"),
        (5, None, "begun"),
        (6, 5, "failed: KeyError"),
    ]
    first = rows[0]
    assert (first.who, first.role, first.how) == ("ann", "operator", "certificate 1f")
    assert (first.action, first.target, first.wall) == ("device.approve", "pi", 12.5)
    assert [one.seq for one in read_log(tmp_path, last=2)] == [5, 6]
    assert verify_log(tmp_path).row is None


def test_of_two_who_act_at_once_the_newest_row_is_the_recorded_head(tmp_path, monkeypatch):
    """The slower one wrote the number of its own, older row last: rows after it could be cut off unseen."""
    with AuditLog(tmp_path) as slow, AuditLog(tmp_path) as fast:
        other = threading.Thread(target=fast.append, args=(ANN, "device.approve", "pi-2", "done"))

        def hindered(path, data):
            if not other.ident:
                other.start()
                other.join(0.5)
            write_atomic(path, data)

        monkeypatch.setattr("coordinator.audit.log.write_atomic", hindered)
        slow.append(ANN, "device.approve", "pi-1", "done")
        other.join()
    assert AuditHead.read((tmp_path / HEAD).read_text(), HEAD).seq == 2
    change(tmp_path, "DELETE FROM audit WHERE seq = 2")
    assert verify_log(tmp_path).row == 2


def test_nobody_has_acted_yet(tmp_path):
    assert read_log(tmp_path) == []
    found = verify_log(tmp_path)
    assert (found.head, found.row) == (None, None)
    with pytest.raises(Refused, match="has this coordinator ever run"):
        AuditLog(Location(tmp_path / "mistyped"))
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize(
    ("statement", "row", "words"),
    [
        ("UPDATE audit SET doc = replace(doc, 'pi-1', 'pi-9') WHERE seq = 2", 2, "row 2 is not what"),
        ("DELETE FROM audit WHERE seq = 2", 2, "row 2 is missing"),
        ("DELETE FROM audit WHERE seq = 1", 1, "row 1 is missing"),
        ("DELETE FROM audit WHERE seq >= 3", 3, "rows 3 to 4 are missing"),
        ("DELETE FROM audit", 1, "rows 1 to 4 are missing"),
        ("UPDATE audit SET seq = 9 WHERE seq = 4", 4, "row 4 is missing; the next one is row 9"),
        ("UPDATE audit SET doc = 'x' WHERE seq = 1", 1, "row 1 is not what"),
    ],
)
def test_the_first_row_that_was_changed_or_removed_is_named(tmp_path, statement, row, words):
    acted(tmp_path)
    change(tmp_path, statement)
    found = verify_log(tmp_path)
    assert found.row == row
    assert words in found.why


def rewritten(folder, first: int) -> None:
    """Change a row, and compute all later ones anew, as somebody who knows the format would."""
    with closing(Location.at(folder).shared(OPERATORS)) as shared, shared.change() as tables:
        before = None
        for row in tables.execute("SELECT seq, doc FROM audit ORDER BY seq").fetchall():
            entry = json.loads(row["doc"])
            if row["seq"] == first:
                entry["who"] = "bob"
            if before is not None:
                entry["before"] = before
            doc = json.dumps(entry)
            before = digest_of(doc)
            words = "UPDATE audit SET doc = ?, digest = ? WHERE seq = ?"
            tables.execute(words, (doc, before, row["seq"]))


def test_a_log_that_was_written_anew_shows_by_a_recorded_head(tmp_path):
    acted(tmp_path)
    head = verify_log(tmp_path).head
    assert head is not None
    rewritten(tmp_path, 2)
    found = verify_log(tmp_path)
    assert found.row == 4, "the file audit.head knows the newest row"
    assert "was written anew" in found.why
    (tmp_path / HEAD).unlink()
    assert verify_log(tmp_path).row is None, "who changes both leaves no trace here"
    assert verify_log(tmp_path, (head,)).row == 4, "but a head that was kept elsewhere shows it"
    assert verify_log(tmp_path, (AuditHead(2, head.digest),)).row == 2


def test_one_row_replaced_alone_breaks_the_next_ones_name_of_it(tmp_path):
    acted(tmp_path)
    with closing(Location.at(tmp_path).shared(OPERATORS)) as shared, shared.change() as tables:
        doc = tables.execute("SELECT doc FROM audit WHERE seq = 2").fetchone()["doc"].replace("ann", "bob")
        tables.execute("UPDATE audit SET doc = ?, digest = ? WHERE seq = 2", (doc, digest_of(doc)))
    found = verify_log(tmp_path)
    assert (found.row, found.why) == (2, "row 3 names another row before it: row 2 was replaced")


def test_two_processes_write_one_chain(tmp_path):
    """Two connections, as the console and a command have them."""

    def write(who: str) -> None:
        with AuditLog(tmp_path) as log:
            for _ in range(10):
                log.append(Person(who, "admin", "test"), "device.approve", "pi", "done")

    threads = [threading.Thread(target=write, args=(who,)) for who in ("ann", "bob")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = verify_log(tmp_path)
    assert (found.row, found.head.seq) == (None, 20)
    assert {one.who for one in read_log(tmp_path)} == {"ann", "bob"}


def test_words_of_a_person_are_bounded_and_on_one_line(tmp_path):
    with AuditLog(tmp_path) as log:
        log.append(Person("a\nb" + "x" * 500, "admin", "h"), "rounds.hold", "w\x1b[31m" * 200, "o" * 2000)
    [found] = read_log(tmp_path)
    assert found.who.startswith("a b")
    assert max(len(found.who), len(found.target), len(found.outcome)) <= 500
    assert "\x1b" not in found.target


def test_a_damaged_head_is_named(tmp_path):
    acted(tmp_path, 1)
    (tmp_path / HEAD).write_text("seven")
    with pytest.raises(Misconfigured, match=r"audit\.head: 'seven' is no head"):
        verify_log(tmp_path)


@pytest.mark.sqlite_only
def test_a_full_disk_stops_the_action_before_it_begins(tmp_path):
    """SQLite's own page limit: the same error as a full disk's, at a place of our choice."""
    acted(tmp_path)
    with AuditLog(tmp_path) as log:
        log._tables._connection.execute("PRAGMA max_page_count=1")
        done: list[int] = []

        def revoke_all() -> None:
            for number in range(500):
                with log.acting(ANN, "device.revoke", f"pi-{number}" + "x" * 150):
                    done.append(number)

        with pytest.raises(Transient, match="not done, because the audit log cannot be written"):
            revoke_all()
    rows = read_log(tmp_path)
    begun = [one for one in rows if one.action == "device.revoke" and one.of is None]
    assert len(begun) >= len(done), "nothing was done without a row"
    assert verify_log(tmp_path).row is None


@pytest.mark.sqlite_only
def test_what_was_done_without_its_last_row_is_said(tmp_path, monkeypatch):
    def full(*_, **__):
        raise Transient("disk full")

    def approve(log) -> None:
        with log.acting(ANN, "device.approve", "pi"):
            monkeypatch.setattr(log, "append", full)

    with (
        AuditLog(tmp_path) as log,
        pytest.raises(Transient, match=r"device\.approve: done \(done\), but the audit log does not say"),
    ):
        approve(log)
    assert [one.outcome for one in read_log(tmp_path)] == ["begun"]


@pytest.mark.sqlite_only
def test_tables_of_a_newer_release_are_refused(tmp_path):
    acted(tmp_path)
    with closing(sqlite3.connect(tmp_path / OPERATORS.file)) as db:
        db.execute("PRAGMA user_version=99")
        db.execute("PRAGMA application_id=99")
    with pytest.raises(Misconfigured, match="written by a newer lichen"):
        AuditLog(tmp_path)


def test_the_account_is_the_operating_systems_and_not_the_environments(monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    assert "somebody-else" not in account().name
    assert (account().role, account().how) == ("admin", "command line")
