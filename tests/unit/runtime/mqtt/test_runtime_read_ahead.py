"""The MQTT socket reads ahead, and the event loop is called once for many messages."""

import asyncio

from runtime.mqtt.inbox import Inbox, Message
from runtime.mqtt.paho_connection import _AHEAD_BYTES, _ReadAhead


class Wire:
    """A socket: what arrived, in the pieces in which it arrived."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.reads: list[int] = []

    def recv(self, size: int) -> bytes:
        self.reads.append(size)
        if not self.pieces:
            raise BlockingIOError
        piece, self.pieces[:1] = self.pieces[0], []
        return piece

    def fileno(self) -> int:
        return 7


def test_heads_of_many_packets_are_one_read_of_the_socket() -> None:
    wire = Wire(b"ab" * 50, b"")
    ahead = _ReadAhead(wire)
    assert ahead.pending() == 0
    assert b"".join(ahead.recv(1) for _ in range(60)) == (b"ab" * 50)[:60]
    assert (len(wire.reads), ahead.pending(), ahead.fileno()) == (1, 40, 7)
    assert ahead.recv(1000) == b"ab" * 20, "no more than is there, and no wait for the rest"
    assert ahead.recv(1) == b"", "the peer has closed it"


def test_a_large_packet_is_read_without_a_copy_in_between() -> None:
    wire = Wire(bytes(_AHEAD_BYTES * 2))
    assert len(_ReadAhead(wire).recv(_AHEAD_BYTES * 2)) == _AHEAD_BYTES * 2
    assert wire.reads == [_AHEAD_BYTES * 2]


async def test_the_loop_is_called_once_for_messages_that_it_has_not_taken(monkeypatch) -> None:
    loop, inbox, calls = asyncio.get_running_loop(), Inbox(100), []
    monkeypatch.setattr("runtime.mqtt.inbox.post", lambda _loop, call: calls.append(call))
    stream = inbox.stream()
    for turn in (1, 2):
        for n in range(3):
            inbox.offer(Message(str(n), b""), loop)
        assert len(calls) == turn
        calls[-1]()
        assert [(await anext(stream)).topic for _ in range(3)] == ["0", "1", "2"]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        if turn == 1:  # it waits: a message from now on must call the loop
            inbox.offer(Message("last", b""), loop)
            assert len(calls) == turn + 1
            calls[-1]()
            assert (await waiting).topic == "last"
            calls.pop()
    waiting.cancel()
