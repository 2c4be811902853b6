"""``lichen.Fleet`` against a real console over a coordinator's tables."""

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import lichen
from console.serve import RunningConsole
from coordinator.actions import people
from coordinator.audit.log import read_log
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.setup import init
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from lichen.api import console_http
from tests.support.console.consoles import ADMIN, running
from tests.support.console.fleet_tables import state_of, store_states
from tests.support.console.history import History, settings_in
from tests.support.coordinator.rollouts import plan, release

ROUNDS, DEVICES = 60, 130


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorSettings:
    """Rounds and versions of several pages, devices of two, and an open rollout."""
    made = settings_in(tmp_path_factory.mktemp("fleet"), rollout={"mode": "manual"})
    with History(made) as history:
        history.makes(0)
        for number in range(1, ROUNDS + 1):
            history.plays(number, ["a", "b"])
        history.stands(RoundPhase.DONE, ROUNDS, ROUNDS)
        store_states(history.store, (state_of(number) for number in range(DEVICES)))
    with RolloutStore(made.location) as book:
        book.play(Begun(mode="manual", release=release(1)), time.time())
        book.play(Create(release=release(2), plan=plan()), time.time())
    return made


@pytest.fixture(scope="module")
def console(settings: CoordinatorSettings) -> Iterator[RunningConsole]:
    with running(settings) as made:
        yield made


def link(settings: CoordinatorSettings, url: str, name: str) -> str:
    token, _ = people.link(settings, ADMIN, name, "operator")
    return f"{url}/sign-in?token={token}"


def test_api_fleet_looks_without_a_sign_in_and_reads_all_pages(console: RunningConsole) -> None:
    fleet = lichen.Fleet(console.url)
    assert fleet.who()["role"] == "viewer"
    assert fleet.session == ""
    assert fleet.rounds().column("round") == list(range(ROUNDS, 0, -1))
    assert fleet.versions().column("version") == list(range(ROUNDS, -1, -1))
    assert fleet.versions(limit=3).column("version") == [60, 59, 58]
    names = fleet.devices().column("device")
    assert names == [f"device-{number:05d}" for number in range(DEVICES)]
    assert 0 < len(fleet.devices(status="offline")) < DEVICES
    assert fleet.device(names[3])["device"]["device"] == names[3]
    assert fleet.round(2)["round"]["outcome"] == "quorum"
    assert fleet.round_devices(2).column("device") == ["a", "b"]
    assert fleet.version(2)["version"]["parent_version"] == 1
    assert fleet.rollouts()[0]["phase"] == "open"
    assert fleet.rollout(1)["rollout"]["row"]["number"] == 1
    assert fleet.status()["trouble_of_tables"] == ""
    assert fleet.get("/quarantine")["devices"] == []


def test_api_fleet_history_is_a_table_of_rounds_and_scores(console: RunningConsole) -> None:
    history = lichen.Fleet(console.url).history()
    assert history.column("round") == list(range(1, ROUNDS + 1))
    assert history[1]["accuracy"] == pytest.approx(0.75)
    assert history.column("folded") == [2] * ROUNDS
    assert {"macro_f1", "loss", "bytes_up", "outcome"} <= set(history.columns)


def test_api_fleet_says_what_the_console_says(console: RunningConsole) -> None:
    fleet = lichen.Fleet(console.url)
    with pytest.raises(lichen.Refused, match="round 999 is not in the history") as refused:
        fleet.round(999)
    assert str(refused.value).startswith(console.url), "its words, and no code of messages between devices"
    with pytest.raises(lichen.Refused, match="the address asks for what this list has not"):
        fleet.devices(sort="nothing")
    with pytest.raises(
        lichen.Misconfigured, match=r"without a session one may only look; sign in first.*link="
    ):
        fleet.hold_rounds()


def test_api_fleet_acts_as_the_person_of_a_link(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = settings_in(tmp_path_factory.mktemp("acting"), rollout={"mode": "manual"})
    with History(own) as history:
        history.makes(0)
        history.stands(RoundPhase.WAITING, 0, 0)
    with RolloutStore(own.location) as book:
        book.play(Begun(mode="manual", release=release(1)), time.time())
        book.play(Create(release=release(2), plan=plan()), time.time())
    with running(own, closed=True) as made:
        given = link(own, made.url, "ann")
        with lichen.Fleet(made.url, link=given) as ann:
            assert ann.pause_rollout(1, phase="open") == {"rollout": 1, "phase": "paused"}
            assert ann.rollouts()[0]["phase"] == "paused"
            with pytest.raises(lichen.Refused, match="rollout 1 is paused now, and no more open"):
                ann.abort_rollout(1, phase="open")
            assert ann.resume_rollout(1)["phase"] == "open"
            assert ann.hold_rounds("a <new> sensor")["rounds"] == "held"
            with pytest.raises(lichen.Refused, match="this is for the role admin; ann has the role operator"):
                ann.invite("barn-1")
            acted = [one for one in read_log(own.location) if one.action == "rounds.hold"]
            assert {(one.who, one.role) for one in acted} == {("ann", "operator")}
            again = lichen.Fleet(made.url, session=ann.session)
            assert again.who()["name"] == "ann"
            with pytest.raises(lichen.Refused, match="this link was used already"):
                lichen.Fleet(made.url, link=given).status()
            with pytest.raises(lichen.Misconfigured, match="sign in first"):
                lichen.Fleet(made.url).status()
        with pytest.raises(lichen.Misconfigured, match="sign in first"):
            again.status()


def test_api_fleet_downloads_a_bundle_and_checks_it(tmp_path: Path) -> None:
    settings, data = settings_in(tmp_path), bytes(range(256)) * 9000
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a"])
        digest = asyncio.run(history.exports(1, data))
        stored = history.blob_file(digest)
    file = tmp_path / "model.bundle"
    with running(settings) as console:
        fleet = lichen.Fleet(console.url)
        assert fleet.download(1, file) == file
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
        with pytest.raises(lichen.Refused, match="name one bundle of version 0 with digest=: none"):
            fleet.download(0, tmp_path / "other")
        with pytest.raises(lichen.Refused, match="has no bundle 0000"):
            fleet.download(1, tmp_path / "other", "0" * 64)
        stored.chmod(0o600)
        stored.write_bytes(data[:-1] + b"x")
        with pytest.raises((lichen.Transient, lichen.Refused)):
            fleet.download(1, file)
        stored.write_bytes(data[:-1])
        with pytest.raises(lichen.Transient, match="bytes where it is stored"):
            fleet.download(1, file)
    assert file.read_bytes() == data, "a file that is there is replaced by a whole bundle alone"
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".*")), "no half a file stays"


def test_api_fleet_signs_in_by_a_certificate_over_tls(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
    init(settings, ["localhost", "127.0.0.1"])
    ca, pem = IdentityPaths.of(settings).authority / "ca.crt", tmp_path / "ann.pem"
    pem.write_bytes(people.add(settings, ADMIN, "ann", "viewer", 30.0).pem)
    with running(settings, tls=True) as console:
        fleet = lichen.Fleet(console.url, ca=ca, certificate=pem)
        assert fleet.who()["name"] == "ann"
        assert fleet.versions().column("version") == [0]
        with pytest.raises(lichen.Misconfigured, match=r"its certificate is not trusted.*ca="):
            lichen.Fleet(console.url).status()
        with pytest.raises(lichen.Misconfigured, match="sign in first"):
            lichen.Fleet(console.url, ca=ca).status()
        for files, words in (
            ((tmp_path / "no.pem",), "certificate: .*no.pem"),
            ((ca,), "no certificate with"),
        ):
            with pytest.raises(lichen.Misconfigured, match=words):
                lichen.Fleet(console.url, ca=ca, certificate=files[0]).status()
        with pytest.raises(lichen.Misconfigured, match=r"ca: .*none\.crt: No such file"):
            lichen.Fleet(console.url, ca=tmp_path / "none.crt").status()


def test_api_fleet_refuses_addresses_that_are_no_console() -> None:
    for url in ("127.0.0.1:8480", "ftp://x", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:0"):
        with pytest.raises(lichen.Misconfigured, match="is no console's address"):
            lichen.Fleet(url)
    with pytest.raises(lichen.Misconfigured, match="by TLS alone; write https://"):
        lichen.Fleet("http://console.example:8480")
    with pytest.raises(lichen.Misconfigured, match="name one of link, certificate and session"):
        lichen.Fleet("http://127.0.0.1:8480", link="x", session="y")


def test_api_fleet_waits_no_longer_than_it_was_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(lichen.Transient, match=r"did not answer in 0\.2 s"):
            lichen.Fleet(url, timeout_s=0.2).status()
    with pytest.raises(lichen.Transient, match=r"cannot be reached.*does `lichen console serve` run"):
        lichen.Fleet(url).status()


class Endless(BaseHTTPRequestHandler):
    """Another server: a page at one path, and an answer that does not end at others."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/api/v1/status":
            self.wfile.write(b"<html>hello</html>")
            return
        try:
            while True:
                self.wfile.write(bytes(65536))
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_api_fleet_reads_only_so_much_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_http, "MAX_ANSWER_BYTES", 1_000_000)
    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        fleet = lichen.Fleet(f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(lichen.Refused, match="the answer is no JSON; no console"):
                fleet.status()
            with pytest.raises(lichen.Refused, match="an answer of over 1000000 bytes"):
                fleet.rollouts()
        finally:
            server.shutdown()
            thread.join()
