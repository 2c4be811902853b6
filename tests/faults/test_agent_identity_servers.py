"""Services that are slow, huge, lying, or no service at all: bounded in time and bytes, and said in words."""

import json
import socket
import time
import tracemalloc

import pytest

from edge_agent.identity import enrolment_api
from edge_agent.identity.enrolment import enrol
from edge_agent.identity.files import folder_of
from edge_agent.identity.retry import RetryPolicy
from protocol.enrolment import CA_PATH, ENROL_PATH, MAX_BODY_BYTES
from protocol.errors import Misconfigured, Reason, Refused, Transient
from tests.support.identity.pki import Pki
from tests.support.identity.stub import Silent, Stub, trickle

LIMIT_S = 0.5


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def stub(pki):
    with Stub(pki) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "state")


def once(folder, stub):
    """One attempt, no second."""
    return enrol(folder, stub.invite(), "d1", RetryPolicy(0.0, lambda _: None), timeout_s=LIMIT_S)


def raw(data: bytes):
    def answer(handler):
        handler.wfile.write(data)

    return answer


def slow_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for i in range(200):
        handler.wfile.write(f"X-{i}: y\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.1)


def endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(2000):
        handler.wfile.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")


def endless_header(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(2000):
        handler.wfile.write(b"x" * 65536)


@pytest.mark.parametrize("behaviour", [trickle, slow_headers], ids=["body", "headers"])
def test_a_trickle_of_bytes_ends_at_the_deadline(folder, stub, behaviour):
    stub.raw = behaviour
    begun = time.monotonic()
    with pytest.raises(Transient, match=r"did not answer in 0\.5 s"):
        once(folder, stub)
    assert time.monotonic() - begun < 4 * LIMIT_S


def test_one_that_accepts_and_never_speaks_ends_at_the_deadline(folder, stub):
    with Silent() as silent:
        begun = time.monotonic()
        with pytest.raises(Transient, match=r"did not answer in 0\.5 s"):
            enrol(
                folder, stub.invite(url=silent.url), "d1", RetryPolicy(0.0, lambda _: None), timeout_s=LIMIT_S
            )
    assert time.monotonic() - begun < 4 * LIMIT_S


def test_the_deadline_holds_where_dialling_alone_took_longer(folder, stub, monkeypatch):
    """A name server may be slow, too; then nothing was there yet that could be cut."""
    stub.raw, dial = trickle, socket.create_connection

    def slow(*args, **kwargs):
        time.sleep(1.2 * LIMIT_S)
        return dial(*args, **kwargs)

    monkeypatch.setattr("edge_agent.identity.https_client.socket.create_connection", slow)
    begun = time.monotonic()
    with pytest.raises(Transient, match=r"did not answer in 0\.5 s"):
        once(folder, stub)
    assert time.monotonic() - begun < 4 * LIMIT_S


@pytest.mark.parametrize("behaviour", [endless, endless_header], ids=["body", "header"])
def test_a_flood_is_not_kept(folder, stub, behaviour):
    stub.raw = behaviour
    tracemalloc.start()
    with pytest.raises(Refused) as caught:
        once(folder, stub)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.reason in {Reason.TOO_LARGE, Reason.MALFORMED}
    assert peak < 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", Refused),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort", Transient),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nnonsense", Transient),
        (b"HTTP/1.1 200 OK\r\nContent-Len", Transient),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\nxx", Transient),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\nxx", Transient),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Refused),
        (b"", Transient),
        (b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", Refused),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", Transient),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", Refused),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x01", Refused),
    ],
    ids=[
        "huge",
        "cut off",
        "negative",
        "in the headers",
        "huge chunk",
        "no chunk",
        "ssh",
        "nothing",
        "moved",
        "500",
        "404",
        "binary",
    ],
)
def test_an_answer_that_is_none(folder, stub, answer, error):
    stub.raw = raw(answer)
    with pytest.raises(error, match=stub.url):
        once(folder, stub)
    assert [path for path, _ in stub.requests] == [CA_PATH], "nothing followed, and nothing was sent"
    assert not folder.pair.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"status": "issued"}',
        b"[" * 50_000,
        b'{"status": "issued", "fleet": "a/b", "device": "d1"}',
        b'{"status": "issued", "fleet": "test", "device": "d1"}',
        b'{"status": "issued", "fleet": "test", "device": "d1", "certificate": "hello"}',
        b'{"status": "pending", "fleet": "test", "device": "d1", "wait_s": NaN}',
        b'{"status": "pending", "fleet": "test", "device": "d1", "wait_s": 1e300}',
        b'{"status": "issued", "fleet": "test", "device": "d1", "certificate": "' + b"x" * 60_000 + b'"}',
    ],
)
def test_nonsense_from_the_true_service_is_refused_and_changes_nothing(folder, stub, body):
    stub.on_request = lambda path, _body: (200, body) if path == ENROL_PATH else None
    with pytest.raises(Refused):
        once(folder, stub)
    assert not folder.pair.exists()
    assert not folder.record.exists()


@pytest.mark.parametrize("host", ["evil\nport = 1", "a b", "x\x00y", '"'])
def test_a_host_that_would_break_the_configuration_is_refused(folder, stub, host):
    def forge(path, body):
        if path != ENROL_PATH:
            return None
        answer = json.loads(stub._issue(json.loads(body)["csr"], "d1")[1])
        return 200, json.dumps(answer | {"broker_host": host}).encode()

    stub.on_request = forge
    with pytest.raises(Refused, match="invalid answer"):
        once(folder, stub)
    assert not folder.record.exists()


def test_a_chain_without_end_is_not_followed(folder, stub):
    many = stub.pki.authority.ca_pem * 20

    def forge(path, body):
        if path != ENROL_PATH:
            return None
        answer = json.loads(stub._issue(json.loads(body)["csr"], "d1")[1])
        return 200, json.dumps(answer | {"certificate": (answer["certificate"] + many)[:16000]}).encode()

    stub.on_request = forge
    with pytest.raises(Refused):
        once(folder, stub)


def test_an_answer_of_just_the_bound_is_read(stub):
    stub.on_request = lambda _path, _body: (200, b" " * MAX_BODY_BYTES)
    with pytest.raises(Refused, match="not a certificate"):
        enrolment_api.authority(stub.url, "0" * 64, 5.0)
    stub.on_request = lambda _path, _body: (200, b" " * (MAX_BODY_BYTES + 1))
    with pytest.raises(Refused, match="at most 65536"):
        enrolment_api.authority(stub.url, "0" * 64, 5.0)


@pytest.mark.parametrize("url", ["https://", "https://:8443", "https://host:99999", "https://[::1"])
def test_an_address_that_is_none_is_said(folder, stub, url):
    invite = stub.invite()
    broken = type(invite).model_construct(**(invite.model_dump() | {"url": url}))
    with pytest.raises((Misconfigured, Refused), match="not the address"):
        enrol(folder, broken, "d1", RetryPolicy(0.0, lambda _: None), timeout_s=LIMIT_S)


def test_a_host_that_nobody_knows(folder, stub):
    with pytest.raises(Transient, match="host name is not known"):
        enrol(
            folder,
            stub.invite(url="https://no-such-host.invalid:1"),
            "d1",
            RetryPolicy(0.0, lambda _: None),
            timeout_s=5.0,
        )
