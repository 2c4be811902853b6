"""The fault proxy does what its methods say, since every test of a bad link rests on it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lichen_lab.simulation.processes.tcp_proxy import Proxy


@contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(65536):
                    sock.sendall(data)
            except OSError:
                return

    def take() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(sock,)))
            threads[-1].start()

    taking = threading.Thread(target=take)
    taking.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        taking.join(5)
        for thread in threads:
            thread.join(5)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with echo() as port, Proxy(port, seed=1) as made:
        yield made


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def read(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = sock.recv(count - len(got))
        if not piece:
            break
        got += piece
    return got


def test_a_good_link_passes_all_in_order_and_counts(proxy):
    data = bytes(range(256)) * 400
    with dial(proxy) as sock:
        sock.sendall(data)
        assert read(sock, len(data)) == data
    assert proxy.bytes_taken("up") == proxy.bytes_passed("up") == proxy.bytes_passed("down") == len(data)
    assert proxy.connections == 1


def test_a_cut_is_a_reset_and_the_next_connection_is_good(proxy):
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with dial(proxy) as sock:
        sock.sendall(b"y")
        assert read(sock, 1) == b"y"
    assert proxy.cuts == 1


def test_cut_again_and_again_until_healed(proxy):
    proxy.cut_every(0.05)
    for _ in range(2):
        with pytest.raises(ConnectionResetError), dial(proxy) as sock:
            sock.recv(1)
    proxy.heal()
    with dial(proxy) as sock:
        time.sleep(0.12)
        sock.sendall(b"y")
        assert read(sock, 1) == b"y"


@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_a_black_hole_passes_nothing_resets_nothing_and_gives_back_what_it_held(proxy, direction):
    with dial(proxy) as sock:
        sock.sendall(b"1")
        assert read(sock, 1) == b"1"
        proxy.black_hole(direction)
        sock.sendall(b"2")
        sock.settimeout(0.15)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        passed = proxy.bytes_passed("up")
        assert passed == (2 if direction == "down" else 1)
        with dial(proxy) as late:  # taken as well, and as silent
            late.settimeout(0.1)
            with pytest.raises(TimeoutError):
                late.recv(1)
        proxy.heal()
        sock.settimeout(5)
        assert read(sock, 1) == b"2"


def test_a_throttle_keeps_the_rate(proxy):
    proxy.throttle(100_000, "up")
    with dial(proxy) as sock:
        began = time.monotonic()
        sock.sendall(bytes(50_000))
        assert len(read(sock, 50_000)) == 50_000
        assert 0.4 < time.monotonic() - began < 2.5


def test_a_delay_holds_each_direction(proxy):
    proxy.delay(0.1)
    with dial(proxy) as sock:
        began = time.monotonic()
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert 0.2 <= time.monotonic() - began < 2


def test_flipped_bits_are_as_many_as_asked_for_and_single(proxy):
    proxy.flip_bits(0.01)
    with dial(proxy) as sock:
        sock.sendall(bytes(20_000))
        got = read(sock, 20_000)
    wrong = [byte for byte in got if byte]
    assert 200 < len(wrong) < 600, "1 % there and 1 % back"
    assert sum(byte.bit_count() == 1 for byte in wrong) > 0.9 * len(wrong)


def test_a_refusing_proxy_resets_new_connections_and_one_without_upstream_does_too(proxy):
    proxy.refuse()
    with pytest.raises(ConnectionResetError), dial(proxy) as sock:  # it may come while connecting
        sock.recv(1)
    proxy.heal()
    proxy.upstream_port = 1
    with pytest.raises(ConnectionResetError), dial(proxy) as sock:
        sock.recv(1)


def test_closing_ends_every_connection_and_frees_the_port(proxy):
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        proxy.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
