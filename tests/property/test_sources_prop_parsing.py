"""Scans, lines, payloads: whatever comes, it is read right or refused in words."""

import json
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sources.iio.scan_format import Element, ScanLayout, ScanType
from edge_agent.sources.payloads import BadPayload, at, dotted, loads, number, parse_path, seconds
from edge_agent.sources.serial.line_formats import LineReader, SerialModality
from edge_agent.sources.serial.line_splitter import Lines


@st.composite
def types(draw):
    storage = draw(st.sampled_from([8, 16, 32, 64]))
    bits = draw(st.integers(1, storage))
    shift = draw(st.integers(0, storage - bits))
    end, sign = draw(st.sampled_from(["le", "be"])), draw(st.sampled_from("su"))
    repeat = draw(st.integers(1, 4))
    middle = f"X{repeat}" if repeat > 1 else ""
    return ScanType.parse(f"{end}:{sign}{bits}/{storage}{middle}>>{shift}")


@given(st.lists(types(), min_size=1, max_size=6), st.data())
def test_what_a_driver_packs_is_what_is_read(chosen, data):
    """Against a packing of one number at a time, with noise in the bits that do not count."""
    layout = ScanLayout(Element(f"c{i}", i, one) for i, one in enumerate(chosen))
    scan, wanted = bytearray(data.draw(st.binary(min_size=layout.size, max_size=layout.size))), {}
    for i, one in enumerate(chosen):
        half = 1 << (one.bits - 1)
        low, high = (-half, half - 1) if one.kind == "s" else (0, 2 * half - 1)
        numbers = data.draw(st.lists(st.integers(low, high), min_size=one.repeat, max_size=one.repeat))
        wanted[f"c{i}"] = [numbers, numbers]
        for k, value in enumerate(numbers):
            width = one.storage_bits // 8
            here = layout.offsets[f"c{i}"] + k * width
            order = "big" if one.big else "little"
            mask = ((1 << one.bits) - 1) << one.shift
            noise = int.from_bytes(scan[here : here + width], order) & ~mask
            stored = noise | ((value << one.shift) & mask)
            scan[here : here + width] = stored.to_bytes(width, order)
    found = layout.read(bytes(scan) * 2)
    assert {name: values.tolist() for name, values in found.items()} == wanted


@given(st.lists(types(), min_size=1, max_size=8))
def test_elements_do_not_overlap_and_each_lies_on_its_own_size(chosen):
    layout = ScanLayout(Element(f"c{i}", i, one) for i, one in enumerate(chosen))
    end = 0
    for i, one in enumerate(chosen):
        at_ = layout.offsets[f"c{i}"]
        assert at_ % one.bytes == 0
        assert end <= at_ < end + one.bytes
        end = at_ + one.bytes
    assert layout.size >= end


@given(st.text(max_size=40))
def test_a_type_is_read_or_refused(text):
    with suppress(ValueError):
        assert ScanType.parse(text).bytes >= 1


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(16, 64))
def test_lines_do_not_depend_on_how_the_bytes_are_cut_and_stay_bounded(blocks, limit):
    whole, cut = Lines(0.0, limit), Lines(0.0, limit)
    at_once = [line for _, line in whole.feed(b"".join(blocks), 1.0)]
    pieces = []
    for block in blocks:
        pieces += [line for _, line in cut.feed(block, 1.0)]
        assert len(cut._rest) <= limit
    assert pieces == at_once
    assert all(0 < len(line) <= limit and b"\n" not in line for line in pieces)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_columns_that_were_printed_are_read_back(values):
    reader = LineReader({"m": SerialModality(columns=tuple(range(len(values))))}, "csv", ",", {})
    line = ",".join(repr(value) for value in values).encode()
    np.testing.assert_array_equal(reader.rows(line)["m"][0], np.array(values, np.float32))


@given(st.binary(max_size=80), st.sampled_from(["csv", "json", "nmea"]))
def test_a_line_of_garbage_is_a_row_or_refused(line, kind):
    where = {"paths": ("a.b",)} if kind == "json" else {"columns": (1,)}
    with suppress(BadPayload):
        rows = LineReader({"m": SerialModality(**where)}, kind, ",", {}).rows(line)
        assert all(values.shape == (1, 1) for values in rows.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False), max_size=3))
def test_a_value_is_a_number_or_refused(value, words):
    with suppress(BadPayload):
        found = number(loads(json.dumps(value).encode()), words)
        assert isinstance(found, float)


@given(st.binary(max_size=60))
def test_any_payload_is_json_or_text_or_refused(payload):
    with suppress(BadPayload):
        assert isinstance(loads(payload), str | int | float | list | dict | None)


names = st.text("abcdefgh_-$ é", min_size=1, max_size=6).filter(lambda text: not text.startswith("$"))


@given(st.lists(names | st.integers(0, 99), max_size=5))
def test_a_path_that_is_written_is_read_back_and_finds_its_value(parts):
    assert parse_path(dotted(parts)) == tuple(parts)
    value = "here"
    for part in reversed(parts):
        value = {part: value} if isinstance(part, str) else [None] * part + [value]
    assert at(value, tuple(parts)) == "here"


@given(json_values, st.sampled_from(["s", "ms", "us", "ns", "iso8601"]))
def test_a_time_is_finite_or_refused(value, unit):
    with suppress(BadPayload):
        assert math.isfinite(seconds(value, unit))


def test_a_deep_payload_is_refused():
    with pytest.raises(BadPayload, match="deep"):
        loads(b"[" * 100_000)
