"""The enrolment service over real HTTPS: what strangers may try, and what it costs us."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time

import pytest

from coordinator.identity.certificates import common_name, read_certificate
from coordinator.identity.http_api import application as service_module
from coordinator.identity.http_api import listener as door_module
from coordinator.identity.http_api.rate_limit import Throttle
from coordinator.identity.paths import IdentityPaths
from protocol.enrolment import CA_PATH, ENROL_PATH, MAX_BODY_BYTES, RENEW_PATH, EnrolAnswer, EnrolRefusal
from protocol.errors import Misconfigured, Reason
from tests.support.identity.desk import (
    Answered,
    Client,
    csr,
    make_desk,
    new_key,
    service,
    settings,
    signature,
)
from tests.support.network.brokers import HOST

HOUR = 3600.0


def refused(answer: Answered) -> Reason:
    assert 400 <= answer.status < 600
    assert answer.headers["content-type"] == "application/json"
    assert b"Traceback" not in answer.body
    return EnrolRefusal.model_validate_json(answer.body).reason


def issued(answer: Answered) -> EnrolAnswer:
    assert answer.status == 200, answer.body
    found = EnrolAnswer.model_validate_json(answer.body)
    assert found.status == "issued"
    return found


async def enrolled(client: Client, device: str = "pi-1"):
    """A device with its key, certificate, token and request."""
    key, token = new_key(), client.desk.invite(device, HOUR).token
    request = csr(key)
    answer = issued(await client.post(ENROL_PATH, token=token, device=device, csr=request))
    assert answer.certificate is not None
    return key, answer.certificate, token, request


async def renewed(client: Client, key, certificate: str, new, signer=None) -> Answered:
    request = csr(new)
    made = signature(signer or key, request)
    return await client.post(RENEW_PATH, certificate=certificate, csr=request, signature=made)


async def test_a_device_enrols_and_a_lost_answer_costs_nothing(tmp_path) -> None:
    async with service(tmp_path, broker_host=HOST, broker_port=1234) as client:
        ca = await client.ask("GET", CA_PATH)
        assert (ca.status, ca.body.decode()) == (200, client.desk.authority.ca_pem)
        assert "date" in ca.headers, "a device without a clock learns the time from it"
        key, certificate, token, request = await enrolled(client)
        made, public = read_certificate(certificate)
        assert (common_name(made), public) == ("pi-1", key.public_key())
        again = issued(await client.post(ENROL_PATH, token=token, device="pi-1", csr=request))
        assert again.certificate == certificate
        assert (again.broker_host, again.broker_port, again.ca) == (
            HOST,
            1234,
            client.desk.authority.ca_pem,
        )
        anew = issued(await client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(key)))
        assert anew.certificate == certificate, "the same key, signed again, is the same device"


async def test_a_stolen_token_is_refused_after_its_use(tmp_path) -> None:
    async with service(tmp_path) as client:
        _, _, token, _ = await enrolled(client)
        thief = await client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(new_key()))
        assert (thief.status, refused(thief)) == (403, Reason.BAD_INVITE)
        other = await client.post(ENROL_PATH, token="A" * 43, device="pi-1", csr=csr(new_key()))
        assert refused(other) is Reason.BAD_INVITE


async def test_an_expired_invite_is_refused_over_the_wire(tmp_path) -> None:
    now = [time.time()]
    async with service(tmp_path, wall=lambda: now[0]) as client:
        token = client.desk.invite("pi-1", HOUR).token
        now[0] += HOUR + 1
        late = await client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(new_key()))
        assert refused(late) is Reason.BAD_INVITE
        assert b"expired" in late.body


async def test_an_unnamed_invite_waits_until_the_operator_approves(tmp_path) -> None:
    async with service(tmp_path) as client:
        asked = {"token": client.desk.invite(None, HOUR).token, "device": "pi-7", "csr": csr(new_key())}
        first = EnrolAnswer.model_validate_json((await client.post(ENROL_PATH, **asked)).body)
        assert (first.status, first.certificate) == ("pending", None)
        assert first.wait_s > 0
        client.desk.book.approve("pi-7")
        assert issued(await client.post(ENROL_PATH, **asked)).device == "pi-7"


async def test_many_uses_of_one_token_at_once_are_one_certificate(tmp_path) -> None:
    async with service(tmp_path) as client:
        token = client.desk.invite("pi-1", HOUR).token
        requests = [csr(new_key()) for _ in range(4)]
        asked = [{"token": token, "device": "pi-1", "csr": r} for r in requests for _ in range(3)]
        answers = await asyncio.gather(*(client.post(ENROL_PATH, **one) for one in asked))
        good = {json.loads(a.body)["certificate"] for a in answers if a.status == 200}
        assert len(good) == 1
        assert sum(a.status == 200 for a in answers) == 3, "all three of the key that won"
        assert {refused(a) for a in answers if a.status != 200} == {Reason.BAD_INVITE}


async def test_renewal_and_whose_it_is_not(tmp_path) -> None:
    async with service(tmp_path) as client:
        key, certificate, _, _ = await enrolled(client)
        new = new_key()
        forged = await renewed(client, key, certificate, new, signer=new)
        assert refused(forged) is Reason.MALFORMED, "signed with another key than the certificate's"
        first = issued(await renewed(client, key, certificate, new))
        assert first.certificate not in (None, certificate)
        assert issued(await renewed(client, key, certificate, new)).certificate == first.certificate
        assert refused(await renewed(client, key, certificate, new_key())) is Reason.REVOKED
        client.desk.book.revoke("pi-1")
        assert refused(await renewed(client, new, str(first.certificate), new_key())) is Reason.REVOKED


async def test_a_certificate_that_ran_out_still_renews_and_a_foreign_one_never_does(tmp_path) -> None:
    now = [time.time()]
    async with service(tmp_path / "a", wall=lambda: now[0]) as client:
        key, certificate, _, _ = await enrolled(client)
        now[0] += (90 + 31) * 86400
        late = await renewed(client, key, certificate, new_key())
        assert refused(late) is Reason.UNKNOWN_DEVICE, "whoever finds a lost device is not let in for ever"
        assert b"renew_grace_days" in late.body
        assert b"lichen device invite pi-1" in late.body
        now[0] -= 2 * 86400
        assert issued(await renewed(client, key, certificate, new_key())).device == "pi-1"
        with make_desk(tmp_path / "b") as foreign:
            stranger = new_key()
            made = foreign.authority.issue_device(csr(stranger), "pi-1").certificate_pem
        assert refused(await renewed(client, stranger, made, new_key())) is Reason.UNKNOWN_DEVICE
        ours = client.desk.authority.issue_coordinator()
        asked = await renewed(client, stranger, ours.certificate_pem, new_key())
        assert refused(asked) is Reason.MALFORMED


HOSTILE = {
    "no json": b"\x00\xff{{{",
    "list": b"[]",
    "number": b"1e999",
    "deep": b"[" * 30_000,
    "surrogate": b'{"token":"' + b"A" * 43 + b'","device":"pi","csr":"\\ud800"}',
    "no token": b'{"device":"pi","csr":"x"}',
    "short token": b'{"token":"A","device":"pi","csr":"x"}',
    "path as name": b'{"token":"' + b"A" * 43 + b'","device":"../../x","csr":"x"}',
    "the coordinator's name": b'{"token":"' + b"A" * 43 + b'","device":"@coordinator","csr":"x"}',
    "wildcard": b'{"token":"' + b"A" * 43 + b'","device":"+","csr":"x"}',
    "bad csr": b'{"token":"' + b"A" * 43 + b'","device":"pi","csr":"-----BEGIN"}',
    "null": b'{"token":null,"device":null,"csr":null}',
    "empty": b"",
}


@pytest.mark.parametrize("path", [ENROL_PATH, RENEW_PATH])
async def test_nonsense_is_refused_in_words_and_never_with_a_trace(tmp_path, path: str) -> None:
    async with service(tmp_path) as client:
        for name, body in HOSTILE.items():
            answer = await client.ask("POST", path, body)
            assert (answer.status, refused(answer)) == (400, Reason.MALFORMED), name
            assert b"AAAAAAAA" not in answer.body, "a token is not echoed"
        for method, where in (
            ("GET", "/"),
            ("GET", ENROL_PATH),
            ("POST", CA_PATH),
            ("GET", "/v1/../etc/passwd"),
        ):
            answer = await client.ask(method, where)
            assert answer.status in (404, 405)
            assert refused(answer) is Reason.MALFORMED
        assert (await enrolled(client))[1], "and it still works"


async def test_a_huge_body_is_refused_unread(tmp_path) -> None:
    async with service(tmp_path) as client:
        for length in (MAX_BODY_BYTES + 1, 10**12, "9" * 20):
            answer = await client.ask("POST", ENROL_PATH, b"x" * 100, **{"content-length": str(length)})
            assert (answer.status, refused(answer)) == (413, Reason.TOO_LARGE)
        chunked = {"content-length": "", "transfer-encoding": "chunked"}
        answer = await client.ask("POST", ENROL_PATH, b"5\r\nhello\r\n0\r\n\r\n", **chunked)
        assert refused(answer) is Reason.MALFORMED, "no length, no reading"
        body = b"x" * (MAX_BODY_BYTES * 3)
        answer = await client.ask("POST", ENROL_PATH, body, **{"content-length": str(MAX_BODY_BYTES)})
        assert refused(answer) is Reason.MALFORMED, "beyond its own length nothing is read"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01" * 50,
        b"GET " + b"a" * 100_000,
        b"POST /v1/enrol HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        b"POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_cut(tmp_path, data: bytes) -> None:
    async with service(tmp_path) as client:
        answer = await client.raw(data)
        assert not answer or answer.startswith(b"HTTP/1.1 4")
        assert b"Traceback" not in answer
        assert (await client.ask("GET", CA_PATH)).status == 200


async def test_slow_clients_are_cut_at_every_stage(tmp_path, monkeypatch) -> None:
    """Silent before TLS, after it, in the headers, in the body: each ends within the life of a connection."""
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(door_module, "CONNECTION_S", 3.0)
    monkeypatch.setattr(service_module, "BODY_S", 0.5)
    async with service(tmp_path) as client:
        start = time.monotonic()
        head = b"POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\n"
        plain, silent, half, slow = await asyncio.gather(
            read_plain(client.port), client.raw(b""), client.raw(head[:30]), drip(client, head)
        )
        plain, waited = plain
        assert time.monotonic() - start < 6
        assert waited < 2.5, "who does not even begin TLS has less time"
        assert (plain, silent, half) == (b"", b"", b"")
        assert b"did not come within" in slow
        await until(lambda: not client.office.door._open)
        assert not client.office.door._of_peer


def test_it_is_the_same_on_the_loop_that_the_daemon_runs_on(tmp_path, monkeypatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(door_module, "CONNECTION_S", 1.0)

    async def main() -> None:
        async with service(tmp_path) as client:
            await enrolled(client)
            plain, silent, cut = await asyncio.gather(
                read_plain(client.port), client.raw(b""), client.raw(b"POST /v1/enrol HT")
            )
            assert (plain[0], silent, cut) == (b"", b"", b"")
            await until(lambda: not client.office.door._open)
            assert (await client.ask("GET", CA_PATH)).status == 200

    uvloop.run(main())


async def read_plain(port: int) -> tuple[bytes, float]:
    """Connect, say nothing; what came, and how long it took to be cut."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        async with asyncio.timeout(10):
            return await reader.read(), time.monotonic() - start
    finally:
        writer.close()


async def drip(client: Client, head: bytes) -> bytes:
    """A byte of the body every 100 ms."""
    reader, writer = await client.connect()
    try:
        writer.write(head)
        reading = asyncio.ensure_future(reader.read(4096))
        for _ in range(30):
            if reading.done():
                break
            writer.write(b"x")
            await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            return await reading
    finally:
        writer.close()


async def until(what, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110 - any condition at all, of parts that have no event
            await asyncio.sleep(0.02)


async def test_connections_that_say_nothing_fill_neither_memory_nor_file_handles(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(door_module, "MAX_OF_A_PEER", 5)
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 2.0)
    async with service(tmp_path) as client:
        crowd = [socket.create_connection((HOST, client.port)) for _ in range(40)]
        try:
            await until(lambda: client.office.door.turned_away >= 35)
            assert len(client.office.door._open) == 5
        finally:
            for one in crowd:
                one.close()
        await until(lambda: not client.office.door._open)
        assert (await client.ask("GET", CA_PATH)).status == 200


async def test_a_flood_of_handshakes_leaves_the_daemon_its_loop(tmp_path) -> None:
    """Handshakes as fast as six threads can ask for them: what else runs on the loop is hardly late."""
    async with service(tmp_path) as client:
        end, lags, tries = time.monotonic() + 2.0, [], [0] * 6

        def flood(n: int) -> None:
            while time.monotonic() < end:
                tries[n] += 1
                with contextlib.suppress(OSError), socket.create_connection((HOST, client.port), 1) as sock:
                    sock.settimeout(1)
                    client.context.wrap_socket(sock, server_hostname="localhost").close()

        flooding = [asyncio.create_task(asyncio.to_thread(flood, n)) for n in range(6)]
        while time.monotonic() < end:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before - 0.01)
        await asyncio.gather(*flooding)
        assert client.office.door.turned_away > 20, tries
        assert sorted(lags)[len(lags) * 9 // 10] < 0.25
        assert sum(tries) > client.office.door.turned_away


async def test_too_many_attempts_are_told_to_wait(tmp_path) -> None:
    async with service(tmp_path) as client:
        client.office.app._throttle = Throttle(rate=0.1, burst=3, total_rate=50, total_burst=50)
        answers = [await client.ask("GET", CA_PATH) for _ in range(5)]
        assert [a.status for a in answers] == [200, 200, 200, 429, 429]
        assert refused(answers[-1]) is Reason.FULL
        assert int(answers[-1].headers["retry-after"]) > 0


async def test_what_waits_for_the_book_is_bounded(tmp_path, monkeypatch) -> None:
    """Somebody holds the book: few requests wait, the others are told to come again."""
    monkeypatch.setattr(service_module, "_MAX_WAITING", 3)
    async with service(tmp_path) as client:
        token, held = client.desk.invite("pi-1", HOUR).token, threading.Event()
        claim = client.desk.book.claim
        monkeypatch.setattr(client.desk.book, "claim", lambda *a: held.wait(10) and claim(*a))
        request = csr(new_key())
        asked = [
            asyncio.create_task(client.post(ENROL_PATH, token=token, device="pi-1", csr=request))
            for _ in range(8)
        ]
        await until(lambda: sum(one.done() for one in asked) == 5)
        held.set()
        answers = await asyncio.gather(*asked)
        assert sorted(a.status for a in answers) == [200] * 3 + [503] * 5
        assert client.office.app._waiting == 0


async def test_a_forwarded_address_is_not_believed(tmp_path) -> None:
    async with service(tmp_path) as client:
        client.office.app._throttle = Throttle(rate=0.1, burst=3, total_rate=50, total_burst=50)
        answers = [await client.ask("GET", CA_PATH, **{"x-forwarded-for": f"10.0.0.{n}"}) for n in range(5)]
        assert answers[-1].status == 429


async def test_a_fault_of_ours_tells_a_stranger_nothing(tmp_path, monkeypatch, capfd) -> None:
    async with service(tmp_path) as client:
        token = client.desk.invite("pi-1", HOUR).token
        monkeypatch.setattr(client.desk.book, "claim", lambda *_: 1 // 0)
        answer = await client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(new_key()))
        assert (answer.status, refused(answer)) == (503, Reason.FULL)
        assert b"division" not in answer.body
        monkeypatch.undo()
        assert (await client.post(ENROL_PATH, token=token, device="pi-1", csr=csr(new_key()))).status == 200
    assert "ZeroDivisionError" in "".join(capfd.readouterr()), "but the log has it"


async def test_a_full_disk_is_said_as_try_again(tmp_path) -> None:
    async with service(tmp_path) as client:
        asked = {"token": client.desk.invite("pi-1", HOUR).token, "device": "pi-1", "csr": csr(new_key())}
        run = client.desk.book._tables._connection.execute
        # Triggers that write until the file may not grow: SQLite's own "database or disk is full".
        run(
            "CREATE TEMP TRIGGER grow AFTER UPDATE ON main.invites BEGIN"
            " INSERT INTO certificates SELECT hex(randomblob(20)), hex(zeroblob(4000000)), 0, 9e9, 0; END"
        )
        run(f"PRAGMA max_page_count={run('PRAGMA page_count').fetchone()[0]}")
        answer = await client.post(ENROL_PATH, **asked)
        assert (answer.status, refused(answer)) == (503, Reason.FULL)
        run("DROP TRIGGER grow")
        run("PRAGMA max_page_count=100000")
        assert issued(await client.post(ENROL_PATH, **asked))


async def test_old_tls_and_foreign_trust_get_nowhere(tmp_path) -> None:
    async with service(tmp_path) as client:
        client.context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.connect()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        client.context = old
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.connect()


async def test_a_port_that_is_taken_names_the_key(tmp_path) -> None:
    async with service(tmp_path) as client:
        with pytest.raises(Misconfigured, match=r"identity\.port"):
            door_module.BoundedListener(HOST, client.port, client.context, client.office.door._app)


async def test_enrolling_anew_tells_the_broker_without_being_asked(tmp_path) -> None:
    told = tmp_path / "told"
    command = ["/bin/sh", "-c", f"echo x >> {told}"]
    async with service(tmp_path, reload_command=command) as client:
        await until(told.exists)
        crl = IdentityPaths.of(settings(tmp_path)).broker.folder / "crl.pem"
        before, count = crl.read_bytes(), told.read_text().count("x")
        await enrolled(client)
        await enrolled(client)  # the first certificate is taken back
        await until(lambda: crl.read_bytes() != before)
        await until(lambda: told.read_text().count("x") > count)


async def test_a_failed_reload_is_tried_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.identity.http_api.service.LOOK_S", 0.1)
    monkeypatch.setattr("coordinator.identity.enrolment.PROVE_S", 0.1)
    told = tmp_path / "told"
    script = f"echo x >> {told}; test $(wc -l < {told}) -ge 3"
    async with service(tmp_path, reload_command=["/bin/sh", "-c", script]) as client:
        await until(lambda: told.exists() and told.read_text().count("x") > 3)
        assert client.desk.book.unproven_since(), "no broker runs here that could act on it"
