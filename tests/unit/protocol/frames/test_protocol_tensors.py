"""Codecs of one tensor: sizes, edges, and what a receiver refuses."""

from dataclasses import replace

import numpy as np
import pytest

from protocol.errors import Reason, Refused
from protocol.frames.error_feedback import with_error_carry
from protocol.frames.tensors import BITS, Codec, Encoded, decode, encode

FLOAT32_MAX = np.finfo(np.float32).max
TINY = np.float32(1e-45)
QUANTIZERS = sorted(BITS)
REALS = [codec for codec in Codec if codec is not Codec.UINT8]
"""Codecs that take any finite number."""


def some(shape=(6, 40), seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def f4(*values):
    return np.array(values, "<f4").tobytes()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5,), (2, 3, 7)])
def test_every_shape_survives_every_codec(codec, shape):
    x = some(shape) if codec in REALS else np.rint(np.abs(some(shape)) * 50)
    y = decode(encode(x, codec, keep=1.0, per_channel=True, coarseness=2**-10))
    assert y.shape == shape
    assert y.dtype == np.float32
    assert y.flags.writeable
    span = float(np.ptp(x)) if x.size else 0.0
    np.testing.assert_allclose(y, x, atol=max(span, 1e-3) / 3 if codec in BITS else 2e-3)


@pytest.mark.parametrize("codec", REALS)
def test_a_constant_tensor_comes_back_exactly(codec):
    x = np.full((4, 33), -1.75, np.float32)
    np.testing.assert_array_equal(decode(encode(x, codec, keep=1.0, per_channel=True, coarseness=2**-5)), x)


@pytest.mark.parametrize("codec", QUANTIZERS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_widest_span_of_float32_does_not_overflow(codec, per_channel):
    x = np.tile(np.array([-FLOAT32_MAX, 0.0, FLOAT32_MAX], np.float32), (2, 100))
    encoded = encode(x, codec, per_channel=per_channel)
    y = decode(encoded).astype(np.float64)
    step = float(np.frombuffer(encoded.step, "<f4").max())
    assert np.abs(x - y).max() <= step / 2 * (1 + 1e-4)


@pytest.mark.parametrize("codec", QUANTIZERS)
def test_subnormal_numbers_keep_the_bound(codec):
    x = np.arange(300, dtype=np.float32) * TINY
    encoded = encode(x, codec)
    step = float(np.frombuffer(encoded.step, "<f4")[0])
    assert step > 0
    assert np.abs(x - decode(encoded)).astype(np.float64).max() <= step / 2 + float(TINY) / 2


def test_three_levels_hold_the_widest_span():
    x = np.array([-FLOAT32_MAX, 1.0, FLOAT32_MAX], np.float32)
    np.testing.assert_array_equal(
        decode(encode(x, Codec.INT2, levels=3)), x * np.array([1, 0, 1], np.float32)
    )


def test_float16_keeps_tiny_deltas_and_huge_values():
    for x in (some() * np.float32(1e-12), some() * np.float32(1e30), np.array([FLOAT32_MAX, -FLOAT32_MAX])):
        y = decode(encode(x, Codec.FLOAT16))
        assert np.isfinite(y).all()
        assert np.abs(x - y).max() <= np.abs(x).max() * 2.0**-10


def test_int4_puts_element_0_in_the_low_bits():
    encoded = encode(np.array([0, 15, 1], np.float32), Codec.INT4)
    assert encoded.data == bytes([0xF0, 0x01])


def test_int2_puts_element_0_in_the_low_bits():
    encoded = encode(np.array([3, 0, 1, 2, 3], np.float32), Codec.INT2)
    assert encoded.data == bytes([0b10_01_00_11, 0b11])


def test_a_channel_has_its_own_range():
    x = np.stack([some((128,)), 1000 * some((128,), 1)])
    whole, channels = encode(x, Codec.INT8), encode(x, Codec.INT8, per_channel=True)
    assert (whole.groups, channels.groups) == (1, 2)
    assert np.abs(x - decode(channels))[0].max() < np.abs(x - decode(whole))[0].max() / 100


def test_a_tensor_costs_its_codes_and_eight_bytes_for_each_range():
    assert encode(some((6, 40)), Codec.INT8).nbytes == 240 + 8
    assert encode(some((2, 128)), Codec.INT8, per_channel=True).nbytes == 256 + 16
    assert encode(some((6, 40)), Codec.FLOAT32).nbytes == 960


@pytest.mark.parametrize("codec", QUANTIZERS)
def test_many_tiny_channels_do_not_blow_the_size(codec):
    x = some((1000, 3))
    assert encode(x, codec, per_channel=True).nbytes <= 3000 * BITS[codec] / 8 + 8


def test_fewer_levels_than_the_codec_has():
    x = some((256,))
    y = decode(encode(x, Codec.INT4, levels=8))
    assert len(np.unique(y)) == 8
    with pytest.raises(ValueError, match="levels must be 3 to 16"):
        encode(x, Codec.INT4, levels=17)
    with pytest.raises(ValueError, match="levels must be 3 to 16"):
        encode(x, Codec.INT4, levels=2)


def test_topk_keeps_the_largest_and_nothing_else():
    x = some((1000,))
    encoded = encode(x, Codec.TOPK, keep=0.05)
    y = decode(encoded)
    kept = np.flatnonzero(y)
    assert len(kept) == 50
    np.testing.assert_array_equal(y[kept], x[kept])
    assert np.abs(x[kept]).min() >= np.abs(np.delete(x, kept)).max()
    assert encoded.nbytes == 400
    with pytest.raises(ValueError, match="keep must be"):
        encode(x, Codec.TOPK, keep=0.0)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_a_finite_float32_cannot_be_encoded(codec, bad):
    with pytest.raises(ValueError, match=r"shape \(2,\) has a NaN or an infinity"):
        encode(np.array([1.0, bad]), codec)


@pytest.mark.parametrize("codec", QUANTIZERS)
def test_stochastic_rounding_is_unbiased(codec):
    x = np.linspace(-1, 1, 41, dtype=np.float32)
    rng, n = np.random.default_rng(5), 4000
    encoded = encode(x, codec, rng=rng)
    step = float(np.frombuffer(encoded.step, "<f4")[0])
    draws = np.stack([decode(encode(x, codec, rng=rng)) for _ in range(n)]).astype(np.float64)
    # The error of one draw has a deviation of at most step / 2; five of its standard errors.
    assert np.abs(draws.mean(axis=0) - x).max() < 5 * step / 2 / np.sqrt(n)
    assert np.abs(draws - x).max() <= step * (1 + 1e-6)
    nearest = decode(encode(x, codec))
    assert np.abs(nearest - x).max() > 5 * step / 2 / np.sqrt(n)  # what a biased rounding would show


@pytest.mark.parametrize("per_channel", [False, True])
def test_same_seed_same_bytes(per_channel):
    x = some()
    first, second = (
        encode(x, Codec.INT4, per_channel=per_channel, rng=np.random.default_rng(3)) for _ in range(2)
    )
    assert first == second


def test_error_carry_needs_its_own_shape():
    with pytest.raises(ValueError, match="error carry of shape"):
        with_error_carry(some((3, 2)), some((2, 3)), Codec.INT8)


def test_error_carry_names_an_overflow():
    x = np.full(3, FLOAT32_MAX)
    with pytest.raises(ValueError, match="NaN or an infinity"):
        with_error_carry(x, x, Codec.INT8)


def refused(encoded):
    with pytest.raises(Refused) as caught:
        decode(encoded)
    return caught.value.reason, caught.value.detail


def test_every_byte_travels_as_it_is():
    x = np.arange(256, dtype=np.float32).reshape(2, 8, 16)
    encoded = encode(x, Codec.UINT8)
    assert encoded.data == bytes(range(256))
    assert (encoded.low, encoded.step, encoded.groups) == (b"", b"", 0)
    np.testing.assert_array_equal(decode(encoded), x)


@pytest.mark.parametrize("bad", [-1, 0.5, 254.99, 256, 1e30, -1e-30])
def test_what_is_no_byte_cannot_be_encoded_as_one(bad):
    with pytest.raises(ValueError, match=r"uint8 tensor of shape \(3,\) holds other than whole numbers"):
        encode(np.array([0, 255, bad]), Codec.UINT8)


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_more_or_less_is_refused(codec):
    x = some((2, 50)) if codec in REALS else np.zeros((2, 50))
    encoded = encode(x, codec, keep=0.1)
    for data in (encoded.data + b"\0", encoded.data[:-1]):
        assert refused(replace(encoded, data=data))[0] is Reason.MALFORMED
    for low in (encoded.low + b"\0\0\0\0", encoded.low[:-1] + b"\0\0"):
        assert refused(replace(encoded, low=low))[0] is Reason.MALFORMED
    for step in (encoded.step + b"\0\0\0\0", encoded.step[:-1] + b"\0\0"):
        assert refused(replace(encoded, step=step))[0] is Reason.MALFORMED


@pytest.mark.parametrize("codec", QUANTIZERS)
@pytest.mark.parametrize(("low", "step"), [(np.nan, 1), (0, np.nan), (np.inf, 0), (0, np.inf), (0, -1)])
def test_bad_scales_are_refused(codec, low, step):
    encoded = encode(some((4,)), codec)
    assert refused(replace(encoded, low=f4(low), step=f4(step)))[0] is Reason.NON_FINITE


SIGNALLING = b"\1\0\x80\x7f"  # a NaN that raises a flag wherever it is touched


@pytest.mark.parametrize("codec", QUANTIZERS)
@pytest.mark.parametrize(
    ("low", "step"), [(SIGNALLING, f4(1)), (f4(0), SIGNALLING), (f4(-np.inf), f4(np.inf))]
)
def test_scales_that_make_numpy_warn_are_refused(codec, low, step):
    assert refused(replace(encode(some((4,)), codec), low=low, step=step))[0] is Reason.NON_FINITE


def test_a_signalling_nan_of_float64_cannot_be_encoded():
    x = np.frombuffer(b"\1\0\0\0\0\0\xf0\x7f", "<f8")
    with pytest.raises(ValueError, match="NaN or an infinity"):
        encode(x, Codec.INT8)


def test_signalling_nans_in_data_and_scale_are_refused():
    for encoded in (
        Encoded(Codec.FLOAT32, (1,), SIGNALLING),
        Encoded(Codec.FLOAT16, (1,), b"\1\x7c", step=f4(1)),
        Encoded(Codec.FLOAT16, (1,), b"\1\0", step=SIGNALLING),
        Encoded(Codec.TOPK, (1,), bytes(4) + SIGNALLING),
    ):
        assert refused(encoded)[0] is Reason.NON_FINITE


@pytest.mark.parametrize("codec", QUANTIZERS)
def test_a_level_beyond_float32_is_refused(codec):
    encoded = encode(np.array([0.0, 1.0]), codec)
    assert refused(replace(encoded, low=f4(3e38), step=f4(1e38)))[0] is Reason.NON_FINITE


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_bad_float16_scale_is_refused(scale):
    assert refused(replace(encode(some((4,)), Codec.FLOAT16), step=f4(scale)))[0] is Reason.NON_FINITE


def test_a_float16_product_beyond_float32_is_refused():
    encoded = Encoded(Codec.FLOAT16, (1,), np.array([60000], "<f2").tobytes(), step=f4(1e38))
    assert refused(encoded)[0] is Reason.NON_FINITE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_raw_value_that_is_not_finite_is_refused(bad):
    assert refused(Encoded(Codec.FLOAT32, (2,), f4(1, bad)))[0] is Reason.NON_FINITE
    assert (
        refused(Encoded(Codec.TOPK, (9,), np.array([4], "<u4").tobytes() + f4(bad)))[0] is Reason.NON_FINITE
    )


@pytest.mark.parametrize("positions", [[1, 1], [2, 1], [0, 9], [0, 2**32 - 1]])
def test_topk_positions_must_increase_within_the_tensor(positions):
    data = np.array(positions, "<u4").tobytes() + f4(1, 2)
    assert refused(Encoded(Codec.TOPK, (9,), data))[0] is Reason.MALFORMED


def test_topk_cannot_have_more_values_than_elements():
    assert refused(Encoded(Codec.TOPK, (1,), bytes(16)))[0] is Reason.MALFORMED


@pytest.mark.parametrize("groups", [0, 2, 4, 6, 12])
def test_groups_are_one_or_one_a_channel(groups):
    encoded = Encoded(Codec.INT8, (3, 4), bytes(12), bytes(4 * groups), bytes(4 * groups), groups)
    assert refused(encoded)[0] is Reason.MALFORMED


def test_an_empty_tensor_has_no_groups():
    assert refused(Encoded(Codec.INT8, (0, 4), b"", bytes(4), bytes(4), 1))[0] is Reason.MALFORMED


def test_unused_bits_must_be_zero():
    assert refused(Encoded(Codec.INT4, (1,), b"\x10", f4(0), f4(1), 1))[0] is Reason.MALFORMED
    assert refused(Encoded(Codec.INT2, (3,), b"\x40", f4(0), f4(1), 1))[0] is Reason.MALFORMED


@pytest.mark.parametrize("codec", QUANTIZERS)
@pytest.mark.parametrize("low", [0.0, 1.0, -1e31, 1e38])
@pytest.mark.parametrize("seed", [None, 1])
def test_the_top_level_stays_within_float32(codec, low, seed):
    x = np.array([low] + [FLOAT32_MAX] * 50, np.float32)
    encoded = encode(x, codec, rng=None if seed is None else np.random.default_rng(seed))
    step = float(np.frombuffer(encoded.step, "<f4")[0])
    assert np.abs(decode(encoded).astype(np.float64) - x).max() <= step * 1e-4


@pytest.mark.parametrize("codec", QUANTIZERS)
@pytest.mark.parametrize("size", [1, 3, 4, 5, 897, 4096])
def test_one_range_is_looked_up_and_gives_what_its_formula_gives(codec, size):
    encoded = encode(some((size,), seed=size) * 1e-3, codec)
    low, step = (np.frombuffer(data, "<f4").astype(np.float64)[0] for data in (encoded.low, encoded.step))
    bits = BITS[codec]
    codes = [encoded.data[n * bits // 8] >> n * bits % 8 & (1 << bits) - 1 for n in range(size)]
    assert decode(encoded).tobytes() == (np.array(codes) * step + low).astype(np.float32).tobytes()
    if size * bits % 8:
        unclean = replace(encoded, data=encoded.data[:-1] + bytes((encoded.data[-1] | 0x80,)))
        with pytest.raises(Refused, match="unused bits"):
            decode(unclean)
