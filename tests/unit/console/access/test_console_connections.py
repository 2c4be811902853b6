"""Connections of one machine leave room for those of others; by real sockets, with TLS and without."""

import socket
import ssl
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from coordinator.identity.setup import init
from runtime.web import server
from tests.support.console.consoles import running, with_tables

FEW = 4


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def console(request, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_OF_AN_ADDRESS", FEW)
    settings = with_tables(tmp_path)
    init(settings, ["localhost"])
    with running(settings, tls=request.param) as made:
        yield made


def line_to(console, source: str) -> socket.socket:
    at = urlsplit(console.url)
    return socket.create_connection((at.hostname, at.port), timeout=20, source_address=(source, 0))


def is_closed(line: socket.socket) -> bool:
    """Waits for the end."""
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


def status(console, line: socket.socket) -> int:
    """The status of a page that is asked for on a new connection."""
    at = urlsplit(console.url)
    if at.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        line = context.wrap_socket(line, server_hostname="localhost")
    line.sendall(f"GET / HTTP/1.1\r\nhost: {at.netloc}\r\nconnection: close\r\n\r\n".encode())
    answer = b""
    while piece := line.recv(65536):
        answer += piece
    line.close()
    return int(answer.split(b" ", 2)[1])


def test_console_one_machine_does_not_hold_all_connections(console):
    with ExitStack() as held:
        silent = [held.enter_context(line_to(console, "127.0.0.1")) for _ in range(FEW)]
        for _ in range(FEW):
            with line_to(console, "127.0.0.1") as more:
                assert is_closed(more), "without an answer, and before a handshake"
        assert status(console, line_to(console, "127.0.0.2")) == 200, "another machine has its own"
        for one in silent:
            one.close()
        for _ in range(3 * FEW):
            with line_to(console, "127.0.0.2"):  # places are given back
                pass
    tries = 0
    while True:
        try:
            assert status(console, line_to(console, "127.0.0.1")) == 200
            break
        except (OSError, IndexError):  # the console has not noticed the ends yet
            tries += 1
            assert tries < 1000


def test_console_all_machines_together_are_bounded(console, monkeypatch):
    monkeypatch.setattr(server, "_CONNECTIONS", FEW)
    with ExitStack() as held:
        for number in range(FEW):
            held.enter_context(line_to(console, f"127.0.0.{number + 2}"))
        with line_to(console, "127.0.0.1") as more:
            assert is_closed(more)


def test_console_a_tls_handshake_that_never_comes_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.2)
    settings = with_tables(tmp_path)
    init(settings, ["localhost"])
    with running(settings, tls=True) as made:
        for words in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with line_to(made, "127.0.0.1") as line:
                line.sendall(words)
                while line.recv(4096):
                    pass
        assert status(made, line_to(made, "127.0.0.1")) == 200
