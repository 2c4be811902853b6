"""What a client of its own sends: paths, methods, hosts, heads and bodies that no browser makes."""

import socket
from urllib.parse import urlsplit

import pytest

from coordinator.audit.log import read_log
from runtime.web import security, server
from tests.support.console.consoles import running, signed_in, with_tables


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    settings = with_tables(tmp_path_factory.mktemp("hostile"))
    with running(settings, closed=True) as made:
        yield made, settings, signed_in(made, settings, "admin")


def raw(console, data: bytes) -> bytes:
    """Everything that comes back until the console closes; or until it says nothing for a while."""
    at, answer = urlsplit(console.url), b""
    with socket.create_connection((at.hostname, at.port), timeout=20) as line:
        try:
            line.sendall(data)
            while piece := line.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    return answer


def request(console, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    host = urlsplit(console.url).netloc
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *headers, "connection: close", "", ""]
    return raw(console, "\r\n".join(lines).encode("latin-1") + body)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "path",
    ["//", "//people", "/static/../people", "/static/%2e%2e/people", "/static//people", "/sign-in/../people",
     "/sign-in/%2e%2e/people", "/sign-in//", "/%2fpeople", "/people/", "/people%00", "/sign-in/people",
     "/api/v1//status", "/API/V1/status", "/api/v1/../../people", "/static/x/..%2f..%2fetc/passwd", "*",
     "/sign-in;x", "http://evil.example/people", "/api/v1/%2e%2e/%2e%2e/people"],
)  # fmt: skip
def test_console_no_path_leads_around_the_sign_in(console, path):
    answer = request(console[0], "GET", path)
    assert status(answer) in {303, 401, 404}
    if status(answer) == 303:
        assert b"location: /sign-in?next=" in answer


@pytest.mark.parametrize(
    "path", ["/api/v1/rounds/hold", "/act/rounds/hold", "/api/v1/rounds/hold?_method=POST"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "FOO"])
def test_console_no_other_method_acts(console, path, method):
    made, settings, admin = console
    cookie = "; ".join(f"{name}={value}" for name, value in admin.jar.items())
    before = len(read_log(settings.location))
    for name in ("x-http-method-override", "x-method-override", "x-http-method"):
        answer = request(
            made, method, path, f"cookie: {cookie}", f"x-csrf-token: {admin.token}", f"{name}: POST"
        )
        assert status(answer) == 405
    assert len(read_log(settings.location)) == before


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET"])
def test_console_signing_out_and_in_is_no_link(console, method):
    answer = request(console[0], method, "/sign-out")
    assert status(answer) == 405
    assert b"set-cookie" not in answer.lower()


@pytest.mark.parametrize(
    "host", ["evil.example", "", "127.0.0.1@evil", "localhost, evil", "[::1].evil", "%31"]
)
def test_console_another_host_is_refused(console, host):
    answer = raw(console[0], f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert status(answer) == 421


def test_console_a_request_that_two_servers_read_differently_is_refused(console):
    host = urlsplit(console[0].url).netloc
    smuggled = (
        f"POST /sign-in HTTP/1.1\r\nhost: {host}\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n"
        "connection: close\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    )
    assert status(raw(console[0], smuggled.encode())) == 400
    assert status(request(console[0], "GET", "/", f"host: {host}")) == 400


@pytest.mark.parametrize(
    "path", ["/?a=%0d%0aset-cookie:x=y", "/%0d%0aset-cookie:x=y", "/sign-in?next=/%0d%0ax:y"]
)
def test_console_no_header_is_injected(console, path):
    head = request(console[0], "GET", path).split(b"\r\n\r\n")[0].lower()
    assert b"\r\nset-cookie" not in head
    assert b"\r\nx:" not in head


@pytest.mark.parametrize(
    ("kind", "body", "found"),
    [
        ("application/x-www-form-urlencoded", b"token=" + b"x" * 5000, 413),
        ("application/x-www-form-urlencoded", b"token=a&token=b", 400),
        ("application/x-www-form-urlencoded", b"token=%ff", 400),
        ("application/x-www-form-urlencoded", b"&".join(b"f%d=1" % n for n in range(300)), 400),
        ("multipart/form-data; boundary=x", b"--x--", 400),
        ("text/plain", b"token=a", 400),
    ],
)
def test_console_bodies_of_the_sign_in_are_bounded(console, kind, body, found):
    answer = request(
        console[0], "POST", "/sign-in", f"content-type: {kind}", f"content-length: {len(body)}", body=body
    )
    assert status(answer) in {found, 429}


@pytest.mark.parametrize(
    "cookie", ["lichen_console=" + "x" * 20_000, "lichen_console=\xe4", "lichen_console=;;;==", "a"]
)
def test_console_odd_cookies_are_no_session(console, cookie):
    assert status(request(console[0], "GET", "/api/v1/session", f"cookie: {cookie}")) == 401


def test_console_slow_heads_and_bodies_end(console, monkeypatch):
    """Each would hold a connection for ever; they are few."""
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    monkeypatch.setattr(security, "_BODY_S", 0.2)
    made = console[0]
    assert raw(made, b"") == b""
    assert raw(made, b"GET / HTTP/1.1\r\nhost:") == b""
    at = urlsplit(made.url)
    with socket.create_connection((at.hostname, at.port), timeout=20) as line:
        line.sendall(f"HEAD /sign-in HTTP/1.1\r\nhost: {at.netloc}\r\n\r\n".encode())
        assert status(line.recv(65536)) == 200
        line.sendall(b"GET / HTT")
        assert line.recv(65536) == b"", "the next head is waited for as long as the first"
    slow = request(
        made,
        "POST",
        "/sign-in",
        "content-type: application/x-www-form-urlencoded",
        "content-length: 50",
        body=b"to",
    )
    assert status(slow) in {400, 429}
