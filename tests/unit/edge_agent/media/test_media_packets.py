"""Packets of the reading process: whole ones come through, all others are refused within bounds."""

import json

import numpy as np
import pytest

from edge_agent.media.job import MAX_JOB_BYTES, Job, read_job
from edge_agent.media.packets import (
    HEADER_BYTES,
    MAX_WORDS_BYTES,
    BadStream,
    PacketKind,
    PacketReader,
    header,
    words_packet,
)


def test_packets_come_through_however_they_are_cut():
    stream = b"".join(header(PacketKind.MEDIA, 5, 10 + i, i) + bytes([i] * 5) for i in range(4))
    stream += words_packet(PacketKind.FAILED, "busy\nin use")
    for step in (1, 7, len(stream)):
        reader = PacketReader(5)
        found = [p for at in range(0, len(stream), step) for p in reader.feed(stream[at : at + step])]
        assert [p.payload for p in found[:4]] == [bytes([i] * 5) for i in range(4)]
        assert [(p.time_ns, p.dropped) for p in found[:4]] == [(10 + i, i) for i in range(4)]
        assert (found[4].kind, found[4].words) == (PacketKind.FAILED, "busy\nin use")


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (header(PacketKind.MEDIA, 101), "101 bytes; the limit is 100"),
        (header(PacketKind.MEDIA, 2**32 - 1), "the limit is 100"),
        (header(PacketKind.WARNING, MAX_WORDS_BYTES + 1), "the limit"),
        (header(PacketKind.MEDIA, 5, -1), "negative time"),
        (b"GET / HTTP/1.1\r\n" + bytes(HEADER_BYTES), "no packet"),
        (header(PacketKind.MEDIA, 5).replace(bytes([1]), bytes([9]), 1)[:HEADER_BYTES], "no packet"),
    ],
    ids=["large", "largest", "many words", "negative time", "other bytes", "unknown kind"],
)
def test_a_packet_beyond_the_limits_is_refused_before_its_bytes_are_taken(stream, why):
    with pytest.raises(BadStream, match=why):
        list(PacketReader(100).feed(stream))


def test_damaged_streams_are_packets_or_refused_and_nothing_else():
    rng = np.random.default_rng(0)
    whole = b"".join(header(PacketKind.MEDIA, 20, i) + bytes(20) for i in range(5)) + words_packet(
        PacketKind.ENDED, ""
    )
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(0, 256)
        try:
            packets = list(PacketReader(20).feed(bytes(damaged)))
        except BadStream:
            refused += 1
        else:
            assert all(len(packet.payload) <= MAX_WORDS_BYTES for packet in packets)
    assert refused > 100


def test_words_are_cut_and_have_no_control_characters():
    (packet,) = PacketReader(1).feed(words_packet(PacketKind.WARNING, "\x1b[2J" + "x" * 5000))
    assert packet.words.startswith("[2Jxxx")
    assert len(packet.payload) == MAX_WORDS_BYTES


def test_a_job_comes_back_as_it_was_and_others_are_refused():
    job = Job("videotestsrc", {"source": {"device": "! filesink"}}, packet_bytes=12, parent=7)
    assert read_job(job.to_bytes()) == job
    for wrong in (b"{", json.dumps({"pipeline": "a", "more": 1}).encode(), b" " * (MAX_JOB_BYTES + 1)):
        with pytest.raises(ValueError, match=r"."):
            read_job(wrong)
