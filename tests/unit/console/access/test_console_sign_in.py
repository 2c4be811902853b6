"""Sign-in by a one-time link: once, for its time, as who it says; and where a browser is sent then."""

import re

import pytest

from console.access.sign_in import own_path
from coordinator.accounts import links, sessions
from coordinator.actions import people
from coordinator.audit.log import AuditLog, read_log, verify_log
from coordinator.audit.tables import OPERATORS
from tests.support.console.consoles import ADMIN, Client, running, signed_in, with_tables

pytestmark = pytest.mark.both_engines


@pytest.fixture
def settings(tmp_path):
    return with_tables(tmp_path)


def made(settings, name="ann", role="operator") -> str:
    return people.link(settings, ADMIN, name, role)[0]


def execute(settings, statement: str, *values: float) -> None:
    with AuditLog(settings.location) as log, log.change() as tables:
        tables.execute(statement, values)


def test_console_a_link_signs_in_once(settings):
    token = made(settings)
    with running(settings) as console:
        ann, thief = Client(console.url), Client(console.url)
        page = ann.get(f"/sign-in?token={token}&next=/nothing")
        assert "signs you in as <strong>ann</strong> with the role <strong>operator</strong>" in page.body
        assert ann.get(f"/sign-in?token={token}").status == 200, "a preview of a link does not use it up"
        entered = ann.form("/sign-in", {"token": page.field("token"), "next": page.field("next")})
        assert (entered.status, entered.headers["location"]) == (303, "/nothing")
        [cookie] = entered.cookies
        assert re.search(r"; HttpOnly; Max-Age=43200; Path=/; SameSite=strict$", cookie), cookie
        assert ann.get("/api/v1/session").json["name"] == "ann"
        assert "ann (operator)" in ann.get("/").body
        stolen = thief.form("/sign-in", {"token": token})
        assert stolen.status == 403
        assert "this link was used already; if that was not you" in stolen.body
        assert not thief.jar
        assert ann.get("/api/v1/session").status == 200
    rows = read_log(settings.location)
    found = [(one.who, one.role, one.how, one.action, one.target) for one in rows if one.of is not None]
    assert found[-1] == ("ann", "operator", "one-time link", "session.begin", "127.0.0.1")
    assert verify_log(settings.location).row is None


def test_console_a_strangers_cookie_makes_no_tables(settings):
    assert not settings.location.has(OPERATORS)
    with running(settings) as console:
        stranger = Client(console.url)
        stranger.jar["lichen_console"] = "made-up"
        assert stranger.get("/api/v1/session").status in {200, 401}
    assert not settings.location.has(OPERATORS)


@pytest.mark.parametrize("token", ["", "x", "%00" * 200, "ä" * 100, "a" * 5000])
def test_console_what_is_no_link_signs_nobody_in(settings, token):
    made(settings)
    with running(settings) as console:
        client = Client(console.url)
        answer = client.form("/sign-in", {"token": token[:3000]})
        assert answer.status == 403
        assert "this link is not known" in answer.body
        assert not client.jar


def test_console_a_link_is_valid_for_its_time_and_their_number_is_bounded(settings):
    token = made(settings)
    execute(settings, "UPDATE links SET expires_wall = expires_wall - ?", links.LINK_S + 1)
    with running(settings) as console:
        answer = Client(console.url).form("/sign-in", {"token": token})
    assert "this link is more than 15 minutes old" in answer.body
    for _ in range(links.MAX_LINKS):
        made(settings)
    with pytest.raises(Exception, match="100 links wait to be used"):
        made(settings)


def test_console_tables_hold_no_secret(settings, tmp_path):
    token = made(settings)
    with running(settings) as console:
        client = Client(console.url)
        client.form("/sign-in", {"token": token})
        [cookie] = client.jar.values()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert token.encode() not in data
            assert cookie.encode() not in data


@pytest.mark.parametrize("column", ["expires_wall", "used_wall"])
def test_console_a_session_ends_after_its_time(settings, column):
    late = {
        "expires_wall": ("UPDATE sessions SET expires_wall = expires_wall - ?", sessions.SESSION_S + 1),
        "used_wall": ("UPDATE sessions SET used_wall = used_wall - ?", sessions.IDLE_S + 1),
    }
    with running(settings, closed=True) as console:
        client = signed_in(console, settings, "admin")
        assert client.get("/").status == 200
        execute(settings, *late[column])
        away = client.get("/?a=1")
        assert (away.status, away.headers["location"]) == (303, "/sign-in?next=/%3Fa%3D1")
        assert client.get("/api/v1/status").status == 401
        live = client.get("/", hx_request="true")
        assert (live.status, live.headers["hx-redirect"]) == (401, "/sign-in")


def test_console_only_a_person_keeps_a_session_alive(settings):
    with running(settings) as console:
        client = signed_in(console, settings, "viewer")
        execute(settings, "UPDATE sessions SET used_wall = used_wall - 1000")

        def used() -> float:
            with AuditLog(settings.location) as log:
                return float(log.rows("SELECT used_wall FROM sessions")[0]["used_wall"])

        before = used()
        assert client.get("/", hx_request="true").status == 200
        assert used() == before
        assert client.get("/").status == 200
        assert used() > before


def test_console_a_session_survives_a_restart(settings):
    with running(settings) as console:
        client = signed_in(console, settings, "operator")
    with running(settings) as console:
        again = Client(console.url)
        again.jar = client.jar
        assert again.get("/api/v1/session").json["role"] == "operator"


def test_console_no_session_is_fixed_beforehand(settings):
    with running(settings, closed=True) as console:
        mallory = Client(console.url)
        mallory.jar = {"lichen_console": "chosen-by-mallory"}
        assert mallory.get("/").status == 303
        victim = Client(console.url)
        victim.jar = dict(mallory.jar)
        victim.form("/sign-in", {"token": made(settings)})
        assert victim.jar["lichen_console"] != "chosen-by-mallory"
        assert mallory.get("/").status == 303
        first = dict(victim.jar)
        victim.form("/sign-in", {"token": made(settings)})
        mallory.jar = first
        assert mallory.get("/").status == 303, "the session before ends with the new one"


def test_console_signing_out_ends_the_session(settings):
    with running(settings, closed=True) as console:
        client, thief = signed_in(console, settings, "operator"), Client(console.url)
        thief.jar = dict(client.jar)
        forged = client.form("/sign-out", {"csrf": "0" * 64})
        assert forged.status == 403
        assert client.get("/").status == 200
        page = client.get("/")
        left = client.form("/sign-out", {"csrf": page.field("csrf")})
        assert (left.status, left.headers["location"]) == (303, "/sign-in")
        assert not client.jar
        assert thief.get("/").status == 303


def test_console_revoking_and_roles_count_at_once(settings):
    with running(settings, closed=True) as console:
        client = signed_in(console, settings, "operator", "bob")
        people.end_sessions(settings, ADMIN, "bob")
        assert client.get("/").status == 303
    assert [one.action for one in read_log(settings.location)][-1] == "session.end"


def test_console_sessions_of_a_name_and_in_all_are_bounded(settings, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 10)
    with running(settings, closed=True) as console:
        clients = [signed_in(console, settings, "viewer", "ann") for _ in range(sessions.MAX_OF_A_NAME + 1)]
        assert [one.get("/").status for one in clients[:2]] == [303, 200]
        for number in range(4):
            signed_in(console, settings, "viewer", f"b{number}")
    with AuditLog(settings.location) as log:
        assert log.rows("SELECT count(*) AS count FROM sessions")[0]["count"] == 10


def test_console_failed_attempts_are_slowed_down(settings):
    with running(settings) as console:
        client = Client(console.url)
        found = [client.form("/sign-in", {"token": f"guess-{n}"}).status for n in range(25)]
        assert found[:20] == [403] * 20
        assert found[-1] == 429
        late = client.form("/sign-in", {"token": made(settings)})
        assert late.status == 429
        assert int(late.headers["retry-after"]) >= 1
        assert "too many attempts to sign in" in late.body
        assert client.get("/").status == 200, "looking goes on"


def test_console_this_machine_looks_until_there_is_a_person(settings):
    with running(settings) as console:
        client = Client(console.url)
        assert "loopback (viewer)" in client.get("/").body
        proxied = client.get("/", x_forwarded_for="192.0.2.7")
        assert proxied.status == 303, "a proxy on this machine stands for others"
    execute(settings, "INSERT INTO people VALUES ('ann', 'admin', '1f', 0, 0, NULL)")
    with running(settings) as console:
        assert Client(console.url).get("/").status == 303


@pytest.mark.sqlite_only  # damages a file
def test_console_says_when_the_tables_of_people_cannot_be_read(settings):
    with running(settings, closed=True) as console:
        client = signed_in(console, settings, "admin")
        console.close()
        (settings.state_dir / "operators.sqlite3").write_bytes(b"no database" * 1000)
        for wal in settings.state_dir.glob("operators.sqlite3-*"):
            wal.unlink()
        page = client.get("/")
        assert page.status == 503
        assert "operators.sqlite3" in page.body
        assert client.get("/api/v1/status").json["error"]


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil", "\\\\evil",
     "javascript:alert(1)", "", "evil", "/sign-in?token=x", "/a\r\nset-cookie: a=b",
     "/%0a" + "x" * 2000, "/ /evil"],
)  # fmt: skip
def test_console_nobody_is_sent_elsewhere(target):
    assert own_path(target) == "/"


@pytest.mark.parametrize("target", ["/", "/devices/a?b=%20c", "/rounds/1"])
def test_console_pages_of_ours_are_found_again(target):
    assert own_path(target) == target


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://[broken"},
        {"origin": "http://localhost:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_console_a_page_of_another_site_changes_nothing(settings, headers):
    with running(settings, closed=True) as console:
        client = signed_in(console, settings, "admin")
        forged = client.form("/sign-out", {"csrf": client.token}, **headers)
        assert forged.status == 403
        assert "a page of another site sent this" in forged.body or "no valid address" in forged.body
        token = made(settings)
        assert Client(console.url).form("/sign-in", {"token": token}, **headers).status == 403
        own = {"origin": console.url, "sec_fetch_site": "same-origin"}
        assert Client(console.url).form("/sign-in", {"token": token}, **own).status == 303
