"""Scans of IIO buffers: types, alignment, signs."""

import struct

import numpy as np
import pytest

from edge_agent.sources.iio.scan_format import Element, ScanLayout, ScanType


def element(name, index, text):
    return Element(name, index, ScanType.parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("le:s16/16>>0", ScanType(False, "s", 16, 16)),
        ("be:s12/16>>4", ScanType(True, "s", 12, 16, 1, 4)),
        ("le:u24/32>>8\n", ScanType(False, "u", 24, 32, 1, 8)),
        ("le:s32/32X4>>0", ScanType(False, "s", 32, 32, 4, 0)),
        ("le:s64/64>>0", ScanType(False, "s", 64, 64)),
        ("be:f32/32>>0", ScanType(True, "f", 32, 32)),
    ],
)
def test_the_kernels_words_are_read(text, expected):
    assert ScanType.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s16/16>>0", "le:x16/16>>0", "le:s17/16>>0", "le:s12/16>>5", "le:s12/24>>0", "le:f16/32>>0"]
)
def test_words_that_are_no_type_are_refused(text):
    with pytest.raises(ValueError, match=r"le:|no type"):
        ScanType.parse(text)


def test_an_accelerometer_with_a_timestamp_is_padded_to_it():
    layout = ScanLayout(
        [
            element("timestamp", 3, "le:s64/64>>0"),
            *(element(a, i, "le:s16/16>>0") for i, a in enumerate("xyz")),
        ]
    )
    assert layout.offsets == {"x": 0, "y": 2, "z": 4, "timestamp": 8}
    assert layout.size == 16
    block = struct.pack("<hhhxxq", 1, -2, 3, 1234567890123456789) + struct.pack(
        "<hhhxxq", -32768, 0, 32767, -1
    )
    found = layout.read(block + b"part")
    assert found["x"].ravel().tolist() == [1, -32768]
    assert found["z"].ravel().tolist() == [3, 32767]
    assert found["timestamp"].ravel().tolist() == [1234567890123456789, -1], "to the nanosecond"


def test_each_element_is_aligned_to_its_own_size_and_the_scan_to_the_largest():
    layout = ScanLayout(
        [element("a", 0, "le:u8/8>>0"), element("b", 1, "le:u32/32>>0"), element("c", 4, "le:u16/16>>0")]
    )
    assert layout.offsets == {"a": 0, "b": 4, "c": 8}
    assert layout.size == 12


def test_a_quaternion_is_aligned_as_a_whole():
    layout = ScanLayout([element("temp", 0, "le:s16/16>>0"), element("rot", 1, "le:s32/32X4>>0")])
    assert layout.offsets["rot"] == 16
    found = layout.read(struct.pack("<h14xiiii", 7, 1, -2, 3, -4))
    assert found["rot"].tolist() == [[1, -2, 3, -4]]


def test_bits_below_and_above_those_that_count_are_ignored():
    layout = ScanLayout([element("x", 0, "be:s12/16>>4")])
    assert layout.read(b"\xff\xff\x7f\xf3\x80\x0f\x00\x1c")["x"].ravel().tolist() == [-1, 2047, -2048, 1]
    padded = ScanLayout([element("x", 0, "le:s12/16>>0")])
    assert padded.read(b"\xff\xf7\x00\xf8")["x"].ravel().tolist() == [2047, -2048]


def test_numbers_with_a_point_are_read_as_they_are():
    layout = ScanLayout([element("x", 0, "be:f32/32>>0")])
    np.testing.assert_allclose(layout.read(struct.pack(">ff", 1.5, -2.25))["x"].ravel(), [1.5, -2.25])
