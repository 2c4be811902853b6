"""Actions on real tables: two people at once, a full disk, no coordinator, tables of another release."""

import re
import time

import pytest

from coordinator.accounts import sessions
from coordinator.actions import people
from coordinator.admission.operator_orders import read_order
from coordinator.audit.log import AuditLog, read_log, verify_log
from coordinator.identity.setup import init
from coordinator.identity.store import IdentityStore
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.rollout.view import read_rollouts
from coordinator.storage.engines import shared_sqlite
from coordinator.storage.migrations import TableVersion
from tests.support.console.consoles import ADMIN, Client, running, signed_in, with_tables
from tests.support.coordinator.rollouts import plan, release

both_engines = pytest.mark.both_engines


@pytest.fixture
def settings(tmp_path):
    return with_tables(tmp_path, rollout={"mode": "manual"})


def rolled_out(settings) -> None:
    with RolloutStore(settings.location) as book:
        book.play(Begun(mode="manual", release=release(1)), time.time())
        book.play(Create(release=release(2), plan=plan()), time.time())


def phase(settings) -> str:
    return read_rollouts(settings.location)[0].phase.value


@both_engines
def test_console_two_people_and_one_rollout(settings):
    rolled_out(settings)
    with running(settings) as console:
        ann, bob = (signed_in(console, settings, "operator", name) for name in ("ann", "bob"))
        seen = {"phase": "open"}
        first = ann.form("/act/rollouts/1/pause", seen | {"csrf": ann.token}, hx_request="true")
        assert (first.status, phase(settings)) == (200, "paused")
        assert "rollout 1 is paused" in first.body
        second = bob.form("/act/rollouts/1/pause", seen | {"csrf": bob.token}, hx_request="true")
        assert second.status == 409
        assert "rollout 1 is paused now, and no more open: somebody acted before" in second.body
        assert ann.post("/api/v1/rollouts/1/resume", {"phase": "paused"}).json == {
            "rollout": 1,
            "phase": "open",
        }
        late = bob.post("/api/v1/rollouts/1/abort", {"phase": "paused"})
        assert (late.status, phase(settings)) == (409, "open")
        assert late.json["error"].startswith("rollout 1 is open now, and no more paused")
        assert bob.post("/api/v1/rollouts/7/abort", {}).status == 409
        assert bob.post("/api/v1/rollouts/1/abort", {"phase": "open"}).json["phase"] == "aborted"
    rows = [(one.who, one.role, one.how, one.action, one.outcome) for one in read_log(settings.location)]
    assert ("bob", "operator", "one-time link", "rollout.abort", "done: rollout 1 is aborted") in rows
    assert verify_log(settings.location).row is None


@both_engines
def test_console_two_people_and_the_rounds(settings):
    with running(settings) as console:
        ann, bob = (signed_in(console, settings, "operator", name) for name in ("ann", "bob"))
        body = {"seen": "open", "why": "the barn is being cleaned"}
        assert ann.post("/api/v1/rounds/hold", body).json == {"rounds": "held", "before": ""}
        again = bob.post("/api/v1/rounds/hold", body)
        assert again.status == 409
        assert again.json["error"] == "ann holds the rounds: the barn is being cleaned"
        end = bob.post("/api/v1/rounds/end", {"seen": "open"})
        assert end.status == 409
        assert "somebody acted before: ann holds the rounds" in end.json["error"]
        assert read_order(settings.location).state == "held"
        assert bob.post("/api/v1/rounds/resume", {"seen": "held"}).status == 200
        assert read_order(settings.location).state == ""


def test_console_the_form_of_the_rounds_follows_them(settings):
    with running(settings) as console:
        ann = signed_in(console, settings, "operator", "ann")

        def targets() -> list[str]:
            return re.findall(r'action="(/act/[^"]+)"', ann.get("/").body)

        page = ann.get("/")
        assert targets() == ["/act/rounds/hold", "/act/rounds/end"]
        fields = {"csrf": page.field("csrf"), "seen": page.field("seen"), "back": page.field("back")}
        done = ann.form("/act/rounds/hold", fields | {"why": "<b>dust</b>"})
        assert (done.status, 'href="/"' in done.body) == (200, True)
        until = time.monotonic() + 20
        while targets() != ["/act/rounds/resume", "/act/rounds/end"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        refused = ann.form("/act/rounds/hold", fields)
        assert "ann holds the rounds: &lt;b&gt;dust&lt;/b&gt;" in refused.body


def test_console_devices_are_admitted_and_revoked(settings):
    init(settings, ["localhost"])
    with running(settings) as console:
        admin, other = (signed_in(console, settings, "admin", name) for name in ("ann", "bob"))
        made = admin.form("/act/invites", {"csrf": admin.token, "device": "pi"}, hx_request="true")
        assert re.search(
            r'<code class="secret">lichen-[^<]{40,}</code>|<code class="secret">[^<]{40,}', made.body
        )
        with IdentityStore(settings.location) as book:
            token = book.invite(None, 60.0)
            book.claim(token, "pi", "a" * 64)
        seen = {"status": "pending"}
        assert admin.post("/api/v1/devices/pi/approve", seen).json["status"] == "active"
        again = other.post("/api/v1/devices/pi/approve", seen)
        assert (again.status, again.json["error"]) == (
            409,
            "pi is active now, and no more pending: somebody acted before; look at it first",
        )
        assert admin.post("/api/v1/devices/pi/revoke", {"status": "active"}).json["device"] == "pi"
        assert other.post("/api/v1/devices/pi/revoke", {"status": "active"}).status == 409
        with IdentityStore(settings.location) as book:
            book.refresh()
            assert book.standing("pi") == "revoked"


@both_engines
def test_console_an_admin_makes_links_and_ends_sessions(settings):
    with running(settings, closed=True) as console:
        admin = signed_in(console, settings, "admin")
        made = admin.post("/api/v1/links", {"name": "bob", "role": "operator"}).json
        assert made["url"].startswith(console.url + "/sign-in?token=")
        bob = Client(console.url)
        assert bob.form("/sign-in", {"token": made["url"].partition("=")[2]}).status == 303
        assert bob.get("/").status == 200
        page = admin.get("/people").body
        assert "bob" in page
        assert admin.post("/api/v1/people/bob/sign-out", {}).json == {"person": "bob", "sessions_ended": 1}
        assert bob.get("/").status == 303


@both_engines
def test_console_a_role_and_a_revocation_count_at_once(settings):
    with AuditLog(settings.location) as log, log.change() as tables:
        tables.execute("INSERT INTO people VALUES ('bob', 'admin', '1f', 2e9, 0, NULL)")
    with running(settings) as console:
        admin, bob = signed_in(console, settings, "admin"), signed_in(console, settings, "admin", "bob")
        assert bob.get("/people").status == 200
        changed = admin.post("/api/v1/people/bob/role", {"role": "viewer", "seen": "admin"})
        assert changed.json == {"person": "bob", "role": "viewer", "before": "admin"}
        assert bob.get("/people").status == 403
        stale = admin.post("/api/v1/people/bob/role", {"role": "operator", "seen": "admin"})
        assert stale.status == 409
        assert "bob has the role viewer now, and no more admin" in stale.json["error"]
        waiting, _ = people.link(settings, ADMIN, "bob")
        assert admin.post("/api/v1/people/bob/revoke", {}).json == {"person": "bob", "sessions_ended": 1}
        assert bob.get("/").status == 303
        assert bob.form("/sign-in", {"token": waiting}).status == 403, "unused links end with the person"
        refused = admin.post("/api/v1/links", {"name": "bob"})
        assert (refused.status, "bob was revoked" in refused.json["error"]) == (403, True)
    with running(settings) as another:
        assert Client(another.url).get("/").status == 303, "the last person's revocation opens it to nobody"


def test_console_a_full_disk_refuses_an_action_in_words(settings, monkeypatch):
    """SQLite's own page limit: the same error as a full disk's, in every connection that an action opens."""
    with running(settings) as console:
        ann = signed_in(console, settings, "operator", "ann")
        opened = shared_sqlite.open_writer

        def full(path, **options):
            connection = opened(path, **options)
            connection.execute("PRAGMA max_page_count=1")
            return connection

        monkeypatch.setattr(shared_sqlite, "open_writer", full)
        order = ""
        for _ in range(200):
            action, seen = ("resume", "held") if order == "held" else ("hold", "open")
            done = ann.post(f"/api/v1/rounds/{action}", {"seen": seen, "why": "x" * 200})
            if done.status != 200:
                break
            order = read_order(settings.location).state
        assert done.status == 503
        assert re.search(r"full", done.json["error"]), done.json
        form = ann.form(f"/act/rounds/{action}", {"csrf": ann.token, "seen": seen, "why": "x" * 200})
        assert form.status == 503
        assert "Not done" in form.body
        assert ann.get("/").status == 200, "looking goes on"
        rows = read_log(settings.location)
        unfinished = {one.seq for one in rows if one.of is None} - {one.of for one in rows}
        if "not done, because the audit log" in done.json["error"]:
            assert not unfinished
            assert read_order(settings.location).state == order


def test_console_while_the_coordinator_is_away(settings):
    with running(settings) as console:
        ann = signed_in(console, settings, "operator", "ann")
        asked = ann.post("/api/v1/devices/pi/ask-state", {})
        assert (asked.status, asked.json["error"]) == (404, "no device pi has said anything here")
        assert ann.post("/api/v1/rounds/hold", {}).status == 200, "an order waits for the coordinator"
        assert "The coordinator does not run" in ann.get("/").body


def test_console_tables_of_a_newer_release_under_an_open_page(settings):
    with running(settings) as console:
        ann = signed_in(console, settings, "operator", "ann")
        with AuditLog(settings.location) as log, log.change() as tables:
            TableVersion(99, 99).write(tables.execute)
        for path in ("/api/v1/rounds/hold", "/api/v1/rollouts/1/pause"):
            found = ann.post(path, {})
            assert found.status == 503
            assert "newer" in found.json["error"]
        form = ann.form("/act/rounds/hold", {"csrf": ann.token}, hx_request="true")
        assert (form.status, "newer" in form.body) == (503, True)


def test_console_an_open_page_is_left_within_seconds(settings, monkeypatch):
    monkeypatch.setattr("console.app._STILL_S", 0.1)
    with running(settings, closed=True) as console:
        ann = signed_in(console, settings, "viewer", "ann")
        import http.client  # noqa: PLC0415
        from urllib.parse import urlsplit  # noqa: PLC0415

        line = http.client.HTTPConnection(urlsplit(console.url).netloc, timeout=20)
        cookie = "; ".join(f"{name}={value}" for name, value in ann.jar.items())
        line.request("GET", "/events", headers={"cookie": cookie, "accept": "text/event-stream"})
        stream = line.getresponse()
        assert stream.read(5) == b"retry"
        people.end_sessions(settings, ADMIN, "ann")
        stream.read()  # ends, else the time of the connection does
        line.close()
        assert ann.get("/events", accept="text/event-stream").status == 401


def test_console_sessions_last_as_documented():
    assert (sessions.SESSION_S, sessions.IDLE_S) == (12 * 3600, 3600)
