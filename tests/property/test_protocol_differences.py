"""Packed blobs: every way to a version ends with the same bytes, and hostile ones cost little."""

import cbor2
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Reason, Refused
from protocol.frames import compression, steps
from protocol.frames.differences import packed_difference, packed_whole, unpacked
from protocol.frames.frame import Limits, compressed, decode_frame, digest, encode_frame, plain, sealed
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, decode, encode, encode_steps
from protocol.messages import BlobRef

RELAXED = settings(deadline=None, max_examples=60)
NAME = "head"
SHAPE = (7, 5)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VALUES = hnp.arrays(np.float32, SHAPE, elements=st.floats(-4, 4, width=32))
LEVELS = hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-steps.MAX_LEVEL, steps.MAX_LEVEL))


def ref_of(blob):
    return BlobRef(digest=digest(blob), size=len(blob))


def frame_of(values, **others):
    tensors = {"head/w": encode(values, Codec.FLOAT32)}
    return encode_frame(BlobHeader(name=NAME), tensors | others)


def refused(read, *reasons):
    with pytest.raises(Refused) as caught:
        read()
    assert caught.value.reason in reasons, caught.value
    return caught.value


@RELAXED
@given(LEVELS)
def test_whole_numbers_are_read_as_they_were_written(levels):
    np.testing.assert_array_equal(steps.unpack(steps.pack(levels), levels.size), levels)


@RELAXED
@given(LEVELS, st.integers(-100, 105))
def test_values_on_a_grid_are_exact(levels, exponent):
    step = 2.0**exponent
    values = steps.values_of(levels, step)
    np.testing.assert_array_equal(values.astype(np.float64), levels * step)
    again = encode_steps(values, steps.exact_step(values))
    np.testing.assert_array_equal(decode(again), values)


@RELAXED
@given(hnp.arrays(np.float32, 9, elements=FINITE))
def test_exact_steps_keep_every_bit_or_are_not_used(values):
    step = steps.exact_step(values)
    if step is not None:
        assert decode(encode_steps(values, step)).tobytes() == values.tobytes()


@RELAXED
@given(st.lists(st.tuples(VALUES, st.sampled_from([0.25, 1.0, 3.0])), min_size=1, max_size=5), st.data())
def test_any_way_to_a_version_gives_one_digest(changes, data):
    """A chain of differences from any version that a device has, and a whole one, to any newer version."""
    exact = changes[0][0]
    first = encode(exact, Codec.STEPS, coarseness=0.125)
    blobs, ways = [frame_of(decode(first))], []
    for values, coarseness in changes:
        exact = exact + values
        published = decode_frame(blobs[-1], BlobHeader)[1]["head/w"]
        change = {
            "head/w": encode(exact - published, Codec.STEPS, coarseness=coarseness),
            "head/n": encode(values[0], Codec.FLOAT32),  # of a kind that is replaced
        }
        way, blob = packed_difference(NAME, blobs[-1], change)
        ways.append(way)
        blobs.append(blob)
    newest = len(blobs) - 1
    start = data.draw(st.integers(0, newest))
    end = data.draw(st.integers(start, newest))
    held = blobs[start]
    for step in range(start, end):
        held = unpacked(ways[step], held, NAME, ref_of(blobs[step + 1]))
    assert held == blobs[end]
    assert unpacked(packed_whole(blobs[end]), None, NAME, ref_of(blobs[end])) == held


@RELAXED
@given(VALUES, st.integers(0, 400), st.integers(1, 255))
def test_a_damaged_difference_makes_nothing(values, at, flip):
    blob = frame_of(np.zeros(SHAPE))
    way, result = packed_difference(NAME, blob, {"head/w": encode(values, Codec.STEPS, coarseness=0.5)})
    damaged = bytearray(way)
    damaged[at % len(way)] ^= flip
    refused(
        lambda: unpacked(bytes(damaged), blob, NAME, ref_of(result)), Reason.WRONG_DIGEST, Reason.MALFORMED
    )


@RELAXED
@given(st.binary(max_size=80), st.integers(0, 200))
def test_any_bytes_are_read_as_numbers_or_refused(data, size):
    try:
        levels = steps.unpack(data, size)
    except Refused:
        return
    assert levels.shape == (size,)
    assert steps.pack(levels) == data


def test_another_parent_is_refused():
    blob, other = frame_of(np.zeros(SHAPE)), frame_of(np.ones(SHAPE))
    way, result = packed_difference(NAME, blob, {"head/w": encode(np.ones(SHAPE), Codec.STEPS)})
    refused(lambda: unpacked(way, other, NAME, ref_of(result)), Reason.WRONG_DIGEST)
    assert unpacked(way, None, NAME, ref_of(result)) == result  # from nothing, which is what zeros are
    refused(lambda: unpacked(way, blob, "encoder/x", ref_of(result)), Reason.WRONG_TENSORS)
    refused(lambda: unpacked(way, blob, NAME, ref_of(blob)), Reason.WRONG_DIGEST)


def test_a_difference_of_a_tensor_that_the_parent_lacks_is_refused():
    blob = frame_of(np.zeros(SHAPE))
    for name, shape in (("head/new", SHAPE), ("head/w", (5, 7))):
        change = {name: encode(np.ones(shape), Codec.STEPS)}
        refused(lambda change=change: packed_difference(NAME, blob, change), Reason.WRONG_TENSORS)


def bomb(size, declared=None, inside=None):
    """A compressed frame that claims or holds ``size`` zeros."""
    content = zstandard.ZstdCompressor().compress(bytes(size) if inside is None else inside)
    body = compression.PREFIX + cbor2.dumps(size if declared is None else declared) + cbor2.dumps(content)
    return sealed(body + b"\x44")


def test_a_decompression_bomb_allocates_nothing():
    data = bomb(1 << 26)
    assert len(data) < 1 << 14
    refused(lambda: plain(data, Limits(max_bytes=1 << 20)), Reason.TOO_LARGE)
    refused(lambda: plain(bomb(1 << 26, declared=1000)), Reason.MALFORMED)
    refused(lambda: plain(bomb(100, declared=1 << 40)), Reason.TOO_LARGE)
    nested = bomb(0, declared=len(bomb(100)), inside=bomb(100))
    refused(lambda: plain(nested), Reason.MALFORMED)
    blob = frame_of(np.zeros(SHAPE))
    refused(lambda: unpacked(data, blob, NAME, ref_of(blob)), Reason.TOO_LARGE)


def test_a_compressed_frame_is_read_like_the_one_inside_and_each_flipped_bit_is_noticed():
    frame = frame_of(np.zeros((40, 40)))
    short = compressed(frame)
    assert len(short) < len(frame) / 10
    assert decode_frame(short, BlobHeader)[0] == decode_frame(frame, BlobHeader)[0]
    assert plain(short) == frame
    for at in range(len(short)):
        damaged = bytearray(short)
        damaged[at] ^= 1
        refused(lambda damaged=damaged: decode_frame(bytes(damaged), BlobHeader), *Reason)
    assert compressed(frame_of(np.zeros(1))) == frame_of(np.zeros(1))  # nothing to gain
