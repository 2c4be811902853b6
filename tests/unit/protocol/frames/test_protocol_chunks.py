"""Chunks: every byte once, whatever the order, and bitmaps that survive a restart."""

import pytest

from protocol.errors import Reason, Refused
from protocol.frames.chunks import Assembly, chunk_at, chunk_count
from protocol.messages import MAX_BLOB_BYTES, MAX_CHUNKS


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (99, 1), (100, 1), (101, 2), (1000, 10)])
def test_count(size, count):
    assert chunk_count(size, 100) == count


def test_chunks_make_the_blob_again():
    data = bytes(range(256)) * 5
    chunks = [chunk_at(data, i, 100) for i in range(chunk_count(len(data), 100))]
    assert b"".join(chunks) == data
    assert [len(chunk) for chunk in chunks] == [100] * 12 + [80]


@pytest.mark.parametrize("index", [-1, 13, 1 << 40])
def test_there_is_no_chunk_beyond_the_blob(index):
    with pytest.raises(IndexError, match="of a blob of 13 chunks"):
        chunk_at(bytes(1280), index, 100)


@pytest.mark.parametrize(("size", "chunk_bytes"), [(-1, 100), (10, 0), (10, -5)])
def test_nonsense_sizes_are_a_fault_of_the_caller(size, chunk_bytes):
    with pytest.raises(ValueError, match="no chunks of"):
        Assembly(size, chunk_bytes)


def test_out_of_order_and_twice_does_no_harm():
    assembly = Assembly(950, 100)
    for index in (9, 3, 0, 4, 1, 2, 8, 5, 6):
        assert assembly.add(index, 50 if index == 9 else 100)
        assert not assembly.add(index, 50 if index == 9 else 100)
        assert not assembly.complete
    assert assembly.missing() == ((7, 7),)
    assert assembly.add(7, 100)
    assert assembly.complete
    assert assembly.missing() == ()


@pytest.mark.parametrize(
    ("index", "length"), [(10, 100), (-1, 100), (1 << 40, 100), (0, 99), (9, 100), (9, 0)]
)
def test_a_chunk_that_does_not_fit_is_refused(index, length):
    assembly = Assembly(950, 100)
    with pytest.raises(Refused) as caught:
        assembly.add(index, length)
    assert caught.value.reason is Reason.MALFORMED
    assert assembly.here == 0


def test_missing_ranges_are_inclusive_and_limited():
    assembly = Assembly(1000, 10)
    for index in range(1, 100, 2):
        assembly.add(index, 10)
    assert assembly.missing(3) == ((0, 0), (2, 2), (4, 4))
    assert len(assembly.missing(1000)) == 50


def test_an_empty_blob_is_complete_at_once():
    assembly = Assembly(0, 100)
    assert assembly.complete
    assert assembly.missing() == ()
    assert Assembly.from_bytes(0, 100, b"").complete


def test_a_bitmap_resumes():
    assembly = Assembly(950, 100)
    assembly.add(2, 100)
    assembly.add(9, 50)
    again = Assembly.from_bytes(950, 100, assembly.to_bytes())
    assert again.here == 2
    assert again.missing() == ((0, 1), (3, 8))
    assert again.has(9)
    assert not again.has(10)


@pytest.mark.parametrize("bitmap", [b"", b"\0", b"\0\0\0", b"\0\x04"])
def test_a_bitmap_of_another_blob_is_refused(bitmap):
    with pytest.raises(Refused, match="does not fit 10 chunks"):
        Assembly.from_bytes(950, 100, bitmap)


def test_the_largest_blob_and_the_most_chunks_are_taken():
    assert Assembly(MAX_BLOB_BYTES, 1 << 20).count * (1 << 20) >= MAX_BLOB_BYTES
    assert Assembly(100 * MAX_CHUNKS, 100).count == MAX_CHUNKS
    with pytest.raises(Refused):
        Assembly(100 * MAX_CHUNKS + 1, 100)


@pytest.mark.parametrize(("size", "chunk_bytes"), [(MAX_BLOB_BYTES + 1, 1 << 20), (MAX_BLOB_BYTES, 100)])
def test_a_huge_blob_is_refused(size, chunk_bytes):
    with pytest.raises(Refused) as caught:
        Assembly(size, chunk_bytes)
    assert caught.value.reason is Reason.TOO_LARGE
