"""The book: a token works once, what was taken back stays so, and two processes may write it."""

import itertools
import json
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coordinator.identity.authority import Issued
from coordinator.identity.certificates import Presented
from coordinator.identity.invites import MAX_RENEWALS_A_DAY
from coordinator.identity.store import FILE, MAX_OPEN_INVITES, IdentityStore
from protocol.errors import Misconfigured, Reason, Refused, Transient

pytestmark = pytest.mark.both_engines

ROOT = Path(__file__).resolve().parents[4]
DAY = 86400.0
HOUR = 3600.0


class Wall:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def book(tmp_path, wall):
    with IdentityStore(tmp_path, wall=wall) as made:
        yield made


def issued(serial: int, wall: Wall, days: float = 90) -> Issued:
    return Issued(f"certificate {serial}", serial, wall.now + days * DAY)


def enrol(book: IdentityStore, wall: Wall, device: str = "pi-1", key: str = "k1", serial: int = 1) -> str:
    token = book.invite(device, HOUR)
    assert book.claim(token, device, key) == ("active", None)
    assert book.keep(device, key, issued(serial, wall)) == f"certificate {serial}"
    return token


def shown(serial: int, issued_wall: float = 1_600_000_000.0) -> Presented:
    return Presented(serial, issued_wall, issued_wall + 90 * DAY)


def refusal(call, *values) -> Reason:
    with pytest.raises(Refused) as found:
        call(*values)
    return found.value.reason


def test_the_same_token_and_key_have_the_same_answer(book, wall) -> None:
    token = enrol(book, wall)
    assert book.claim(token, "pi-1", "k1") == ("active", "certificate 1")
    wall.now += 2 * HOUR  # it ran out, but it was used before
    assert book.claim(token, "pi-1", "k1") == ("active", "certificate 1")


def test_a_token_is_refused_to_another_key_another_name_and_nobody_knows_it(book, wall) -> None:
    token = enrol(book, wall)
    for other in (("pi-1", "k2"), ("pi-2", "k1")):
        with pytest.raises(Refused, match="used already") as found:
            book.claim(token, *other)
        assert found.value.reason is Reason.BAD_INVITE
    assert refusal(book.claim, "x" * 43, "pi-1", "k1") is Reason.BAD_INVITE
    named = book.invite("pi-3", HOUR)
    assert refusal(book.claim, named, "pi-4", "k1") is Reason.BAD_INVITE
    assert book.claim(named, "pi-3", "k3") == ("active", None), "a wrong try did not use it up"


def test_a_token_that_ran_out_is_refused(book, wall) -> None:
    token = book.invite("pi-1", HOUR)
    wall.now += HOUR + 1
    assert refusal(book.claim, token, "pi-1", "k1") is Reason.BAD_INVITE
    assert book.invites() == []


@pytest.mark.sqlite_only
def test_a_token_is_not_on_the_disk(book, tmp_path) -> None:
    token = book.invite("pi-1", HOUR)
    book.claim(token, "pi-1", "k1")
    files = list(tmp_path.glob("identity.sqlite3*"))
    assert files
    assert all(token.encode() not in file.read_bytes() for file in files)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_an_unnamed_invite_waits_for_approval(book, wall) -> None:
    token = book.invite(None, HOUR)
    assert book.claim(token, "pi-9", "k9") == ("pending", None)
    assert book.claim(token, "pi-9", "k9") == ("pending", None)
    assert refusal(book.keep, "pi-9", "k9", issued(1, wall)) is Reason.REVOKED, "not before it is approved"
    assert book.approve("pi-9") == "pending"
    assert book.claim(token, "pi-9", "k9") == ("active", None)


def test_an_unnamed_invite_takes_no_name_that_is_there(book, wall) -> None:
    enrol(book, wall)
    token = book.invite(None, HOUR)
    assert refusal(book.claim, token, "pi-1", "thief") is Reason.BAD_INVITE
    assert book.claim(token, "pi-2", "k2") == ("pending", None)
    other = book.invite(None, HOUR)
    assert refusal(book.claim, other, "pi-2", "k3") is Reason.BAD_INVITE, "nor one that only waits"


def test_a_pending_device_that_is_revoked_stays_out(book) -> None:
    token = book.invite(None, HOUR)
    book.claim(token, "pi-9", "k9")
    book.revoke("pi-9")
    assert refusal(book.claim, token, "pi-9", "k9") is Reason.REVOKED
    with pytest.raises(Refused, match="lichen device invite pi-9"):
        book.approve("pi-9")


def test_two_answers_to_one_request_are_one_certificate(book, wall) -> None:
    token = book.invite("pi-1", HOUR)
    book.claim(token, "pi-1", "k1")
    book.claim(token, "pi-1", "k1")  # asked twice before either was signed
    assert book.keep("pi-1", "k1", issued(1, wall)) == "certificate 1"
    assert book.keep("pi-1", "k1", issued(2, wall)) == "certificate 1"
    assert book.revoked() == []


def test_enrolling_anew_takes_back_what_was_before(book, wall) -> None:
    old = enrol(book, wall)
    enrol(book, wall, key="k2", serial=2)
    assert [one.serial for one in book.revoked()] == [1]
    assert refusal(book.claim, old, "pi-1", "k1") is Reason.BAD_INVITE
    assert refusal(book.keep, "pi-1", "k1", issued(3, wall)) is Reason.BAD_INVITE
    assert [(d.name, d.key, d.serial) for d in book.devices()] == [("pi-1", "k2", "2")]


def test_revoked_is_barred_until_it_enrols_anew_with_an_invite_of_its_own(book, wall) -> None:
    token = enrol(book, wall)
    unused = book.invite("pi-1", HOUR)
    assert book.revoke("pi-1") == 1
    assert book.revoke("pi-1") == 0
    assert book.barred() == ["pi-1"]
    assert [one.serial for one in book.revoked()] == [1]
    assert refusal(book.claim, token, "pi-1", "k1") is Reason.REVOKED
    assert refusal(book.claim, unused, "pi-1", "k2") is Reason.BAD_INVITE, "its open invites went, too"
    assert refusal(book.renewable, "pi-1", shown(1), "k2") is Reason.REVOKED
    enrol(book, wall, key="k3", serial=3)
    assert book.barred() == []
    assert [one.serial for one in book.revoked()] == [1]


def test_a_revocation_between_claim_and_signature_holds(book, wall) -> None:
    token = book.invite("pi-1", HOUR)
    book.claim(token, "pi-1", "k1")
    book.revoke("pi-1")
    assert refusal(book.keep, "pi-1", "k1", issued(1, wall)) is Reason.REVOKED
    assert book.devices()[0].serial is None


def test_renewal_is_answered_again_and_the_old_certificate_stays_good(book, wall) -> None:
    enrol(book, wall)
    assert book.renewable("pi-1", shown(1), "k2") is None
    assert book.renew("pi-1", shown(1), "k2", issued(2, wall)) == "certificate 2"
    assert book.renewable("pi-1", shown(1), "k2") == "certificate 2", "the answer was lost"
    assert book.renew("pi-1", shown(1), "k2", issued(3, wall)) == "certificate 2"
    assert book.revoked() == []
    assert book.revoke("pi-1") == 2, "both are good until then"


def test_the_second_of_two_who_hold_a_key_is_refused(book, wall) -> None:
    enrol(book, wall)
    book.renew("pi-1", shown(1), "thief", issued(2, wall))
    with pytest.raises(Refused, match="its key was stolen") as found:
        book.renewable("pi-1", shown(1), "k2")
    assert found.value.reason is Reason.REVOKED


def test_renewing_without_end_is_refused(book, wall) -> None:
    enrol(book, wall)
    for n in range(1, MAX_RENEWALS_A_DAY):
        book.renew("pi-1", shown(n), f"k{n + 1}", issued(n + 1, wall))
    assert refusal(book.renewable, "pi-1", shown(MAX_RENEWALS_A_DAY), "k") is Reason.FULL
    wall.now += DAY + 1
    assert book.renewable("pi-1", shown(MAX_RENEWALS_A_DAY), "k") is None


def test_a_device_that_is_not_in_the_book_is_told_to_enrol(book) -> None:
    assert refusal(book.renewable, "pi-1", shown(1), "k") is Reason.UNKNOWN_DEVICE
    assert refusal(book.revoke, "pi-1") is Reason.UNKNOWN_DEVICE
    assert book.revoke("pi-1", unknown=True) == 0
    assert book.barred() == ["pi-1"]
    assert refusal(book.approve, "pi-2") is Reason.UNKNOWN_DEVICE
    assert book.approve("pi-2", unknown=True) == "unknown"
    assert book.devices()[0].name == "pi-1"


def test_what_nobody_can_use_any_more_goes(book, wall) -> None:
    enrol(book, wall)
    enrol(book, wall, "pi-9", key="k9", serial=9)
    book.revoke("pi-1")
    book.invite("pi-2", HOUR)
    wall.now += 200 * DAY
    assert book.revoked() == []
    book.invite("pi-3", HOUR)
    rows = book._tables.rows("SELECT (SELECT count(*) FROM invites), (SELECT count(*) FROM certificates)")
    assert tuple(rows[0]) == (1, 1), "what was taken back stays in the book"


def test_open_invites_are_bounded(book, wall) -> None:
    with book._tables.change() as tables:
        rows = [(str(n), "h", wall.now, wall.now + HOUR) for n in range(MAX_OPEN_INVITES)]
        tables.executemany(
            "INSERT INTO invites (id, hash, made_wall, expires_wall) VALUES (?, ?, ?, ?)", rows
        )
    assert refusal(book.invite, "pi-1", HOUR) is Reason.FULL
    wall.now += HOUR + 1
    assert book.invite("pi-1", HOUR)


def test_every_list_is_newer_than_the_last_and_a_wrong_clock_locks_nobody_out(book, wall) -> None:
    first = [book.next_list() for _ in range(5)]
    assert [number for number, _ in first] == [1, 2, 3, 4, 5]
    assert all(b - a >= 1 for (_, a), (_, b) in itertools.pairwise(first))
    assert all(begin < wall.now - DAY / 2 for _, begin in first)
    wall.now += 400 * DAY  # for a moment the clock is a year ahead
    book.next_list()
    wall.now -= 400 * DAY
    assert book.next_list()[1] < wall.now


def test_the_daemon_sees_what_another_process_writes(book, tmp_path, wall) -> None:
    book.refresh()
    assert (book.standing("pi-1"), book.released_at("pi-1")) == ("unknown", None)
    with IdentityStore(tmp_path, wall=wall) as other:
        enrol(other, wall)
        assert book.standing("pi-1") == "unknown"
        book.refresh()
        assert book.standing("pi-1") == "active"
        other.approve("pi-1")
        other.revoke("pi-1")
    book.refresh()
    assert (book.standing("pi-1"), book.released_at("pi-1")) == ("revoked", wall.now)


def test_it_sees_what_it_writes_itself_and_reads_nothing_when_nothing_changed(
    book, wall, monkeypatch
) -> None:
    enrol(book, wall)
    book.refresh()
    assert book.standing("pi-1") == "active"
    monkeypatch.setattr(book._tables, "rows", lambda *_: pytest.fail("read again"))
    book.refresh()


@pytest.mark.sqlite_only
def test_of_two_processes_that_use_one_token_one_gets_it(tmp_path) -> None:
    with IdentityStore(tmp_path) as book:
        tokens = [book.invite(f"pi-{n}" if n % 2 else None, HOUR) for n in range(30)]
    racers = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.identity.racer", str(tmp_path), f"key-{who}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
        )
        for who in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    start, said = time.monotonic() + 0.2, []
    for who, racer in enumerate(racers):
        names = {t: f"pi-{n}" if n % 2 else f"new-{n}-{who}" for n, t in enumerate(tokens)}
        assert racer.stdin is not None
        racer.stdin.write(json.dumps({"start": start, "step": 0.01, "tokens": names}) + "\n")
        racer.stdin.flush()
    for racer in racers:
        said.append(racer.communicate(timeout=30)[0].split())
        assert racer.returncode == 0
    for n, both in enumerate(zip(*said, strict=True)):
        assert sorted(both) == sorted(["bad_invite", "active" if n % 2 else "pending"]), n


def test_a_new_book_may_be_opened_by_many_at_once(tmp_path) -> None:
    """Without waiting, one in a hundred times SQLite says "database is locked" here."""
    wrong: list[Exception] = []
    for n in range(30):
        begin = threading.Barrier(6)

        def work(folder: Path = tmp_path / str(n), begin: threading.Barrier = begin) -> None:
            begin.wait(10)
            try:
                IdentityStore(folder).close()
            except Transient as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not wrong


def test_threads_that_write_at_once_lose_nothing(tmp_path) -> None:
    with IdentityStore(tmp_path) as one, IdentityStore(tmp_path) as two:
        tokens: list[str] = []

        def work(book: IdentityStore) -> None:
            for _ in range(10):
                tokens.append(book.invite(None, HOUR))  # noqa: PERF401 - each is a commit of its own

        threads = [threading.Thread(target=work, args=(book,)) for book in (one, two, one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(set(tokens)) == len(one.invites()) == 40


@pytest.mark.sqlite_only
def test_a_file_that_is_no_book_is_named(tmp_path) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense " * 100)
    with pytest.raises(Misconfigured, match=r"identity\.sqlite3.*backup"):
        IdentityStore(tmp_path)


@pytest.mark.sqlite_only
def test_a_newer_book_is_left_alone(tmp_path) -> None:
    IdentityStore(tmp_path).close()
    made = sqlite3.connect(tmp_path / FILE)
    made.executescript("PRAGMA user_version=99; PRAGMA application_id=99")
    made.close()
    with pytest.raises(Misconfigured, match="newer lichen"):
        IdentityStore(tmp_path)


@pytest.mark.sqlite_only
def test_a_book_that_another_process_holds_is_waited_for_and_then_said(tmp_path, monkeypatch) -> None:
    IdentityStore(tmp_path).close()
    monkeypatch.setattr("coordinator.storage.engines.shared_sqlite._WAIT_S", 0.2)
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with IdentityStore(tmp_path) as book, pytest.raises(Transient, match="locked"):
            book.invite("pi-1", HOUR)
    finally:
        holder.close()


def test_a_clock_that_was_ahead_for_a_while_lets_nothing_in_again(book, wall) -> None:
    """What was taken back was tidied away in the far future, and was not on the next list."""
    enrol(book, wall, key="k1", serial=1)
    enrol(book, wall, key="k2", serial=2)
    assert [one.serial for one in book.revoked()] == [1]
    wall.now += 10 * 365 * DAY
    book.invite("pi-2", HOUR)
    assert book.revoked() == [], "in that future it has run out"
    wall.now -= 10 * 365 * DAY
    assert [one.serial for one in book.revoked()] == [1]


def test_a_stop_does_not_wait_for_another_process_that_holds_the_book(tmp_path) -> None:
    book = IdentityStore(tmp_path)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = threading.Thread(target=book.invite, args=("pi-1", HOUR))
    waiting.start()
    time.sleep(0.1)
    begun = time.monotonic()
    book.close()
    assert time.monotonic() - begun < 3
    other.execute("ROLLBACK")
    other.close()
    waiting.join()
    book.close()
