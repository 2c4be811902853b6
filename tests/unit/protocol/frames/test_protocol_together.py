"""Small tensors in one pass: the same bytes, values and refusals as one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from protocol.errors import Reason, Refused
from protocol.frames.error_feedback import all_with_error_carry, with_error_carry
from protocol.frames.frame import decode_tensors
from protocol.frames.tensors import BITS, Codec, decode, encode
from protocol.frames.together import GROUP_ELEMENTS, decode_each, encode_each, groups, joined, split

QUANTIZERS = sorted(BITS)
SHAPES = {
    "a": (8, 3, 5),
    "b": (8,),
    "empty": (0, 4),
    "scalar": (),
    "long": (GROUP_ELEMENTS + 1,),
    "c": (GROUP_ELEMENTS - 100,),
    "d": (7, 29),
    "same": (5,),
    "subnormal": (40,),
    "wide": (9,),
}


def network(seed):
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    tensors["same"][:] = -1.75
    tensors["subnormal"] = np.arange(40, dtype=np.float32) * np.float32(1e-45)
    tensors["wide"] *= np.float32(1e38)
    return tensors


def equal(left, right):
    return left.keys() == right.keys() and all(
        left[name].shape == right[name].shape and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


def test_groups_keep_the_order_and_the_limit():
    sizes = {"a": 60_000, "b": 5_000, "c": 536, "d": 1, "e": 70_000, "f": 0, "g": 3}
    assert list(groups(sizes.items())) == [["a", "b", "c"], ["d"], ["e"], ["f", "g"]]
    assert list(groups([])) == []


def test_split_is_the_inverse_of_joined():
    tensors = network(1)
    assert equal(split(joined(tensors, SHAPES), SHAPES), tensors)


@pytest.mark.parametrize("codec", [*QUANTIZERS, Codec.FLOAT16, Codec.STEPS])
@pytest.mark.parametrize("carried", [(), ("b", "d"), tuple(SHAPES)])
def test_carry_and_bytes_are_those_of_single_tensors(codec, carried):
    tensors = network(2)
    carry = {name: tensor * np.float32(0.01) for name, tensor in network(3).items() if name in carried}
    encoded, left = all_with_error_carry(tensors, carry, codec, lambda name: 0.5 if name == "a" else 0.25)
    for name, tensor in tensors.items():
        wanted = with_error_carry(tensor, carry.get(name), codec, coarseness=0.5 if name == "a" else 0.25)
        assert encoded[name] == wanted[0], name
        assert left[name].tobytes() == wanted[1].tobytes(), name
        assert left[name].shape == tensor.shape


def test_a_sum_beyond_float32_is_named():
    most = {name: np.full(3, np.finfo(np.float32).max) for name in "ab"}
    with pytest.raises(ValueError, match="tensors a, b has a NaN or an infinity"):
        all_with_error_carry(most, most, Codec.INT8, lambda _: 1.0)


@pytest.mark.parametrize("codec", QUANTIZERS)
def test_the_decoded_values_are_those_of_the_receiver(codec):
    tensors = {name: tensor for name, tensor in network(4).items() if tensor.size}
    encoded, values_N = encode_each(joined(tensors, tensors), {n: SHAPES[n] for n in tensors}, codec)
    assert equal(split(values_N, {n: SHAPES[n] for n in tensors}), {n: decode(e) for n, e in encoded.items()})


def test_a_frame_decodes_as_its_tensors_do():
    tensors = network(5)
    encoded = {name: encode(tensor, Codec.INT8) for name, tensor in tensors.items()}
    encoded |= {
        "four": encode(tensors["d"], Codec.INT4),
        "rows": encode(np.ones((2, 200)), Codec.INT8, per_channel=True),
    }
    together = decode_each(encoded)
    assert set(together) == set(SHAPES) - {"empty", "long"}
    decoded = decode_tensors(encoded)
    assert list(decoded) == list(encoded)
    assert equal(decoded, {name: decode(tensor) for name, tensor in encoded.items()})
    assert decoded["a"].flags.writeable


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"low": np.array(np.nan, "<f4").tobytes()}, Reason.NON_FINITE),
        ({"low": np.array(-np.inf, "<f4").tobytes()}, Reason.NON_FINITE),
        ({"step": np.array(-1, "<f4").tobytes()}, Reason.NON_FINITE),
        ({"step": np.array(3e38, "<f4").tobytes()}, Reason.NON_FINITE),
        ({"step": bytes(3)}, Reason.MALFORMED),
        ({"data": bytes(7)}, Reason.MALFORMED),
    ],
)
def test_a_wrong_tensor_among_others_is_refused_by_name(wrong, reason):
    encoded = {name: encode(np.arange(8.0), Codec.INT8) for name in ("a", "b", "c")}
    encoded["b"] = replace(encoded["b"], **wrong)
    with pytest.raises(Refused) as caught:
        decode_tensors(encoded)
    assert caught.value.reason is reason
    assert caught.value.detail.startswith("tensor 'b': ")
