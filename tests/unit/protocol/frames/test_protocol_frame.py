"""Frames: what they cost on the wire, and every lie that a receiver must see through."""

import time
import tracemalloc
from dataclasses import replace

import cbor2
import numpy as np
import pytest

from protocol.errors import Reason, Refused
from protocol.frames.cbor import SELF_DESCRIBED, head
from protocol.frames.frame import Limits, decode_frame, digest, encode_frame, is_frame, open_frame, sealed
from protocol.frames.headers import BlobHeader, UpdateHeader
from protocol.frames.tensors import Codec, Encoded, encode

HEADER = UpdateHeader(
    task="gestures",
    method="qqr",
    device="wrist-0001",
    round=12,
    base="ab" * 32,
    samples=431,
    counts={"accelerometer": (61, 62, 63, 64, 60, 60, 61), "gyroscope": (61, 0, 63, 64, 60, 60, 61)},
    missing={"accelerometer": 0.0, "gyroscope": 0.1415926},
    quality={"accelerometer": 0.97, "gyroscope": 0.8812345},
    metrics={"loss": 0.31415926, "train_s": 3.25},
)
BLOB = BlobHeader(name="head")


def some(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def frame(*, header=None, tensors=None, version=1):
    """A frame written with cbor2 alone, so that it can hold what encode_frame would not write."""
    header = BLOB.model_dump() if header is None else header
    return SELF_DESCRIBED + cbor2.dumps([version, header, {} if tensors is None else tensors])


def refused(data, header_type=BlobHeader, limits=None):
    with pytest.raises(Refused) as caught:
        decode_frame(data, header_type, limits or Limits())
    return caught.value


def test_header_and_tensors_come_back():
    tensors = {"head/fc.weight": some((4, 9)), "prototypes/a/values": some((3, 5), 1), "scalar": some(())}
    data = encode_frame(HEADER, {name: encode(x, Codec.FLOAT32) for name, x in tensors.items()})
    header, decoded = decode_frame(data, UpdateHeader)
    assert header == HEADER
    assert list(decoded) == sorted(tensors)
    for name, x in tensors.items():
        np.testing.assert_array_equal(decoded[name], x)


def test_a_frame_is_told_from_json_by_its_first_bytes():
    assert is_frame(encode_frame(BLOB, {}))
    assert not is_frame(BLOB.model_dump_json().encode())
    assert not is_frame(b"\xd9\xd9")


def test_the_order_of_tensors_does_not_change_the_bytes():
    a, b = encode(some((3,)), Codec.INT8), encode(some((4,)), Codec.INT4)
    assert encode_frame(BLOB, {"a": a, "b": b}) == encode_frame(BLOB, {"b": b, "a": a})


def test_digest_is_sha256():
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_prototypes_at_4_bits_are_far_below_2_kb():
    tensors = {}
    for modality in ("accelerometer", "gyroscope"):
        tensors[f"prototypes/{modality}/values"] = encode(some((7, 128)), Codec.INT4, per_channel=True)
    assert len(encode_frame(HEADER, tensors)) < 1700


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_delta_at_int8_is_below_27_percent_of_float32(per_channel):
    shapes = [(64, 64, 3)] * 5 + [(64,)] * 5 + [(128, 512), (100, 50)]
    tensors = {
        f"encoder/a/{i}.weight": encode(some(shape), Codec.INT8, per_channel=per_channel)
        for i, shape in enumerate(shapes)
    }
    size = sum(4 * tensor.size for tensor in tensors.values())
    assert len(encode_frame(HEADER, tensors)) < 0.27 * size


def test_a_million_parameters_take_memory_in_the_order_of_the_frame():
    data = encode_frame(BLOB, {"w": encode(some((1000, 1000)), Codec.INT8)})
    tracemalloc.start()
    try:
        decode_frame(data, BlobHeader)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", "../a", "a b", "a\n", "é", "a" * 129])
def test_strange_tensor_names_are_neither_written_nor_read(name):
    with pytest.raises(ValueError, match="tensor name"):
        encode_frame(BLOB, {name: encode(some((1,)), Codec.FLOAT32)})
    error = refused(frame(tensors={name: ["float32", [1], bytes(4), b"", b""]}))
    assert error.reason is Reason.MALFORMED
    assert "tensor name" in error.detail


# A frame that is good up to the last pair of its header, whose key is unknown and would be ignored.
GOOD = SELF_DESCRIBED + b"\x83\x01\xa3" + cbor2.dumps("kind") + cbor2.dumps("blob")
GOOD += cbor2.dumps("name") + cbor2.dumps("head")
LIES = {
    "bytes of 2**40": SELF_DESCRIBED + b"\x83\x01\xa0\xa1\x61w\x85\x67float32\x81\x01" + head(2, 1 << 40),
    "text of 2**63": GOOD + b"\x61x" + head(3, 1 << 63),
    "array of 2**40": GOOD + b"\x61x" + head(4, 1 << 40) + b"\x01",
    "map of 2**62": GOOD + b"\x61x" + head(5, 1 << 62),
    "map of half": GOOD + b"\x61x\xa4" + b"\x61a\x00" * 2,
    "indefinite bytes": GOOD + b"\x61x\x5f\x41a\xff\xa0",
    "indefinite text": GOOD + b"\x61x\x7f\x61a\xff\xa0",
    "indefinite array": GOOD + b"\x61x\x9f\x01\xff\xa0",
    "indefinite map": GOOD + b"\x61x\xbf\xff\xa0",
    "break": GOOD + b"\x61x\xff\xa0",
    "reserved head": GOOD + b"\x61x\x1c\xa0",
    "a date": GOOD + b"\x61x\xc0\x74" + b"2013-03-21T20:04:00Z" + b"\xa0",
    "a bignum": GOOD + b"\x61x\xc2\x41\x01\xa0",
    "the tag again": GOOD + b"\x61x" + SELF_DESCRIBED + b"\x01\xa0",
    "undefined": GOOD + b"\x61x\xf7\xa0",
    "simple value": GOOD + b"\x61x\xf8\x20\xa0",
    "a key twice": GOOD + b"\x61x\xa2\x61a\x01\x61a\x02\xa0",
    "a key twice, once with a longer head": GOOD + b"\x61x\xa2\x61a\x01\x78\x01a\x02\xa0",
    "a header field twice": GOOD + b"\x64name\x61n\xa0",
    "a number as key": GOOD + b"\x01\x02\xa0",
    "bytes as key": GOOD + b"\x41x\x02\xa0",
    "text that is not UTF-8": GOOD + b"\x61x\x61\xff\xa0",
    "cut in a head": GOOD + b"\x61x\xb9\x01",
    "cut in the middle": frame()[:-1],
    "nothing after the tag": SELF_DESCRIBED,
    "the tag twice": SELF_DESCRIBED + frame(),
    "bytes after the end": frame() + b"\x00",
    "a second frame after it": frame() + frame(),
    "not an array": SELF_DESCRIBED + b"\x01",
    "two parts": SELF_DESCRIBED + b"\x82\x01\xa0",
    "four parts": SELF_DESCRIBED + b"\x84\x01\xa0\xa0\xa0",
    "true as format": frame(version=True),
    "tensors as list": frame(tensors=[]),
    "another format": frame(version=2),
    "json": b'{"kind": "update"}',
    "nothing": b"",
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_a_lie_about_structure_is_refused(data):
    assert refused(data).reason is Reason.MALFORMED


def test_without_the_lie_the_frame_is_good():
    assert decode_frame(GOOD + b"\x61x\x82\x01\xf6\xa0", BlobHeader) == (BLOB, {})


def test_a_lying_length_costs_neither_time_nor_memory():
    tracemalloc.start()
    started = time.perf_counter()
    try:
        error = refused(LIES["bytes of 2**40"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "claims 1099511627776 bytes" in error.detail
    assert peak < 256 * 1024
    assert time.perf_counter() - started < 1


def test_a_duplicate_tensor_is_named():
    entry = cbor2.dumps("head/w") + cbor2.dumps(["float32", [1], bytes(4), b"", b""])
    data = SELF_DESCRIBED + b"\x83\x01" + cbor2.dumps(BLOB.model_dump()) + b"\xa2" + entry + entry
    assert "'head/w' appears twice" in refused(data).detail


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("canonical", [True, False])
def test_a_number_in_the_header_must_be_finite(number, canonical):
    data = SELF_DESCRIBED + cbor2.dumps([1, {"extra": {"x": number}}, {}], canonical=canonical)
    assert refused(data).reason is Reason.NON_FINITE


def test_depth_items_and_texts_are_bounded():
    deep = 0
    for _ in range(20):
        deep = [deep]
    assert refused(frame(header={"x": deep})).reason is Reason.TOO_LARGE
    assert refused(frame(header={"x": [0] * 100}), limits=Limits(max_items=50)).reason is Reason.TOO_LARGE
    assert refused(frame(header={"x": "a" * 5000})).reason is Reason.TOO_LARGE
    assert refused(frame(), limits=Limits(max_bytes=10)).reason is Reason.TOO_LARGE


def test_what_is_just_within_the_bounds_is_read():
    nested = [[[0]]]
    header = {"kind": "blob", "name": "head", "x": nested, "y": "a" * 60}
    data = frame(header=header)
    exact = Limits(max_depth=5, max_items=15, max_text=60, max_bytes=len(data))
    assert decode_frame(data, BlobHeader, exact) == (BLOB, {})
    for name in ("max_depth", "max_items", "max_text", "max_bytes"):
        tighter = replace(exact, **{name: getattr(exact, name) - 1})
        assert refused(data, limits=tighter).reason is Reason.TOO_LARGE, name
    assert decode_frame(frame(tensors={"a" * 128: ["float32", [1] * 8, bytes(4), b"", b""]}), BlobHeader)


def test_a_sparse_tensor_may_claim_as_much_as_its_bytes_allow_and_not_one_element_more():
    limits = Limits(max_expansion=7)
    size = len(encode_frame(BLOB, {"t": Encoded(Codec.TOPK, (1, 16384), b"")}))
    room = (7 * size + (1 << 16)) // 4
    whole = encode_frame(BLOB, {"t": Encoded(Codec.TOPK, (1, room), b"")})
    assert len(whole) == size
    assert decode_frame(whole, BlobHeader, limits)[1]["t"].shape == (1, room)
    more = encode_frame(BLOB, {"t": Encoded(Codec.TOPK, (1, room + 1), b"")})
    assert refused(more, limits=limits).reason is Reason.TOO_LARGE


def test_a_wrong_header_field_is_named():
    assert refused(frame(header={"name": "head!"})).detail.startswith("header.name: ")
    header = HEADER.model_dump(mode="json") | {"quality": {"gyroscope": 1.5}}
    assert refused(frame(header=header), UpdateHeader).detail.startswith("header.quality.gyroscope: ")


def test_bytes_are_no_text_in_a_header():
    assert "bytes instead of text" in refused(frame(header={"name": b"head"})).detail


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (["float32", [1], bytes(4), b""], Reason.MALFORMED),
        ({"codec": "float32"}, Reason.MALFORMED),
        ([1, [1], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", 1, bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [1], "abcd", b"", b""], Reason.MALFORMED),
        (["float64", [1], bytes(8), b"", b""], Reason.MALFORMED),
        (["float32", [-1], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [1.0], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [True], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [None], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [1] * 9, bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [2], bytes(4), b"", b""], Reason.MALFORMED),
        (["float32", [1 << 32, 1 << 32], b"", b"", b""], Reason.TOO_LARGE),
        (["float32", [0, 1 << 62, 1 << 62], b"", b"", b""], Reason.TOO_LARGE),
        (["topk", [1 << 26], b"", b"", b""], Reason.TOO_LARGE),
        (["float32", [1], b"\0\0\xc0\x7f", b"", b""], Reason.NON_FINITE),
        (["int8", [1], b"\0", b"\0\0\xc0\x7f", bytes(4)], Reason.NON_FINITE),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(entry, reason):
    error = refused(frame(tensors={"head/w": entry}))
    assert error.reason is reason
    assert "'head/w'" in error.detail


def test_tensors_and_elements_are_counted():
    encoded = encode(some((100,)), Codec.INT8)
    data = encode_frame(BLOB, {f"t{i}": encoded for i in range(10)})
    assert refused(data, limits=Limits(max_tensors=9)).reason is Reason.TOO_LARGE
    assert refused(data, limits=Limits(max_elements=99)).reason is Reason.TOO_LARGE
    assert refused(data, limits=Limits(max_total_elements=999)).reason is Reason.TOO_LARGE
    exact = Limits(max_tensors=10, max_elements=100, max_total_elements=1000, max_bytes=len(data))
    assert len(decode_frame(data, BlobHeader, exact)[1]) == 10


def test_many_sparse_tensors_together_cannot_claim_much():
    empty = Encoded(Codec.TOPK, (100_000,), b"")
    data = encode_frame(BLOB, {f"t{i}": empty for i in range(20)})
    assert refused(data).reason is Reason.TOO_LARGE
    sparse = encode(some((1000, 1000)), Codec.TOPK, keep=0.005)
    assert decode_frame(encode_frame(BLOB, {"t": sparse}), BlobHeader)[1]["t"].shape == (1000, 1000)


def test_opening_does_not_look_at_values():
    encoded = encode(some((4,)), Codec.INT8)
    data = encode_frame(BLOB, {"t": replace(encoded, low=np.array([np.nan], "<f4").tobytes())})
    assert open_frame(data, BlobHeader)[1]["t"].shape == (4,)
    assert refused(data).reason is Reason.NON_FINITE


@pytest.mark.parametrize("argument", [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1])
def test_heads_are_as_cbor2_writes_them(argument):
    assert head(0, argument) == cbor2.dumps(argument)
    with pytest.raises(ValueError, match="does not fit"):
        head(0, 2**64)


def test_no_flipped_bit_in_a_frame_passes():
    data = encode_frame(HEADER, {"prototypes/a/values": encode(some((3, 16)), Codec.INT4)})
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert refused(bytes(damaged), UpdateHeader).reason is Reason.WRONG_DIGEST, bit


@pytest.mark.parametrize("value", [True, "7", 7.0], ids=str)
@pytest.mark.parametrize("field", ["samples", "round", "weight"])
def test_a_whole_number_of_the_header_is_a_whole_number_and_nothing_else(field, value):
    content = HEADER.model_dump(mode="json", exclude_none=True) | {field: value}
    body = cbor2.dumps(cbor2.CBORTag(55799, [2, content, {}, b"    "]), canonical=True)[:-4]
    wrong = refused(sealed(body), UpdateHeader)
    assert (wrong.reason, f"header.{field}" in wrong.detail) == (Reason.MALFORMED, True), wrong.detail


def test_a_frame_of_format_1_cannot_be_made_of_one_of_format_2_by_cutting():
    data = encode_frame(BLOB, {"w": encode(some((4,)), Codec.FLOAT32)})
    for end in range(3, len(data)):
        refused(data[:end])
