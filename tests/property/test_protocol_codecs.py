"""Properties of the codecs: what comes back is as near as promised, and nothing is lost over many rounds."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.base import NAME_PATTERN
from protocol.frames.chunks import Assembly, chunk_at, chunk_count
from protocol.frames.error_feedback import with_error_carry
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import BITS, Codec, decode, encode
from protocol.topics import Kind, device_topic, parse

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
MODEST = st.floats(-100, 100, width=32)
TENSORS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=70), elements=FINITE
)
BYTES = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=70))
QUANTIZERS = st.sampled_from(sorted(BITS))
REALS = st.sampled_from([codec for codec in Codec if codec is not Codec.UINT8])
CODED = st.tuples(TENSORS, REALS) | st.tuples(BYTES, st.just(Codec.UINT8))
NAMES = st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}){0,2}", fullmatch=True
)
RELAXED = settings(deadline=None, max_examples=150)


def steps_of(encoded):
    """The step at each element, float64, in the tensor's shape."""
    step_G = np.frombuffer(encoded.step, "<f4").astype(np.float64)
    return np.repeat(step_G, encoded.size // max(1, encoded.groups)).reshape(encoded.shape)


def half_unit(x):
    """Half a unit in the last place of float32, as float64."""
    below_top = np.minimum(np.abs(x), np.float32(3.4e38))
    return np.spacing(below_top).astype(np.float64) / 2


@RELAXED
@given(TENSORS, QUANTIZERS, st.booleans(), st.integers(0, 3))
def test_nearest_rounding_is_within_half_a_step(x, codec, per_channel, fewer):
    levels = max(3, (1 << BITS[codec]) - fewer)
    encoded = encode(x, codec, per_channel=per_channel, levels=levels)
    error = np.abs(x.astype(np.float64) - decode(encoded).astype(np.float64))
    # 1e-4: at the very edge of float32's range the step is rounded down (protocol.frames.uniform_quantizer)
    assert (error <= steps_of(encoded) / 2 * (1 + 1e-4) + half_unit(x)).all()
    assert (error <= steps_of(encoded)).all()


@RELAXED
@given(TENSORS, QUANTIZERS, st.booleans(), st.integers(0, 2**32))
def test_stochastic_rounding_is_within_a_step(x, codec, per_channel, seed):
    encoded = encode(x, codec, per_channel=per_channel, rng=np.random.default_rng(seed))
    error = np.abs(x.astype(np.float64) - decode(encoded).astype(np.float64))
    assert (error <= steps_of(encoded) * (1 + 1e-4) + half_unit(x)).all()


@RELAXED
@given(TENSORS)
def test_float16_is_within_a_thousandth_of_the_largest(x):
    error = np.abs(x.astype(np.float64) - decode(encode(x, Codec.FLOAT16)).astype(np.float64))
    assert (error <= 2.0**-10 * np.abs(x).max(initial=0).astype(np.float64)).all()


@RELAXED
@given(TENSORS, st.floats(0.001, 1))
def test_topk_keeps_elements_exactly(x, keep):
    y = decode(encode(x, Codec.TOPK, keep=keep))
    assert ((y == x) | (y == 0)).all()
    assert np.count_nonzero(y) >= min(np.count_nonzero(x), int(keep * x.size))


@RELAXED
@given(BYTES)
def test_bytes_come_back_as_they_went(x):
    y = decode(encode(x, Codec.UINT8))
    assert (y.dtype, y.shape) == (np.float32, x.shape)
    np.testing.assert_array_equal(y, x)


@RELAXED
@given(st.dictionaries(NAMES, CODED, max_size=4))
def test_frames_carry_what_the_codec_says(tensors):
    encoded = {name: encode(x, codec) for name, (x, codec) in tensors.items()}
    _, decoded = decode_frame(encode_frame(BlobHeader(name="head"), encoded), BlobHeader)
    assert decoded.keys() == tensors.keys()
    for name, y in decoded.items():
        np.testing.assert_array_equal(y, decode(encoded[name]))


@RELAXED
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(2, 12), st.integers(1, 40)), elements=MODEST),
    st.sampled_from([Codec.INT8, Codec.INT4, Codec.INT2, Codec.TOPK, Codec.FLOAT16]),
    st.booleans(),
)
def test_error_carry_makes_the_sums_agree(rounds, codec, stochastic):
    rng = np.random.default_rng(1) if stochastic else None
    carry, received = None, np.zeros(rounds.shape[1])
    for x in rounds:
        encoded, carry = with_error_carry(x, carry, codec, rng=rng, keep=0.1)
        received += decode(encoded)
    meant = rounds.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(received + carry, meant, atol=1e-2)
    if codec in BITS:
        assert np.abs(received - meant).max() <= float(steps_of(encoded).max()) * (1 + 1e-4) + 1e-2


@pytest.mark.parametrize("codec", [Codec.INT8, Codec.INT4, Codec.INT2, Codec.TOPK])
def test_a_delta_below_the_step_arrives_in_the_end_only_with_carry(codec):
    x = np.zeros(100, np.float32)
    x[0], x[1:] = 1.0, np.linspace(0.001, 0.002, 99)
    carry, with_carry, without = None, np.zeros(100), np.zeros(100)
    for _ in range(400):
        encoded, carry = with_error_carry(x, carry, codec, keep=0.02)
        with_carry += decode(encoded)
        without += decode(encode(x, codec, keep=0.02))
    meant = 400 * x[1:].astype(np.float64)
    lost = np.abs(with_carry[1:] - meant)
    assert lost.max() < 0.4
    assert lost.mean() < np.abs(without[1:] - meant).mean() / 1.5


@RELAXED
@given(st.binary(max_size=3000), st.integers(1, 400), st.randoms(use_true_random=False))
def test_chunks_arrive_in_any_order(data, chunk_bytes, random):
    count = chunk_count(len(data), chunk_bytes)
    order = [*range(count), *random.sample(range(count), count // 2)]
    random.shuffle(order)
    assembly, buffer = Assembly(len(data), chunk_bytes), bytearray(len(data))
    for index in order:
        missing = {i for first, last in assembly.missing(count) for i in range(first, last + 1)}
        chunk = chunk_at(data, index, chunk_bytes)
        assert assembly.add(index, len(chunk)) is (index in missing)
        buffer[index * chunk_bytes : index * chunk_bytes + len(chunk)] = chunk
        assembly = Assembly.from_bytes(len(data), chunk_bytes, assembly.to_bytes())
    assert assembly.complete
    assert bytes(buffer) == data


LEVELS = st.from_regex(NAME_PATTERN, fullmatch=True)


@RELAXED
@given(LEVELS, LEVELS, st.sampled_from(Kind), st.binary(min_size=32, max_size=32), st.integers(0, 2**20 - 1))
def test_topics_come_back(fleet, device, kind, sha, index):
    if kind in {Kind.UP_BLOB, Kind.DOWN_BLOB}:
        route = parse(device_topic(fleet, device, kind, sha.hex(), index))
        assert (route.digest, route.index) == (sha.hex(), index)
    elif not kind.value.startswith("b/"):
        route = parse(device_topic(fleet, device, kind))
        assert (route.fleet, route.device, route.kind) == (fleet, device, kind)
