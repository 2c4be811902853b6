"""The real reader of serial ports, on pseudo-terminals; and lines and formats by themselves."""

import asyncio
import os
import termios
import time
from contextlib import aclosing

import numpy as np
import pytest

from edge_agent.sources.payloads import BadPayload
from edge_agent.sources.registry import open_source
from edge_agent.sources.serial.line_formats import LineReader, SerialModality
from edge_agent.sources.serial.line_splitter import Lines
from edge_agent.sources.serial.port import SerialLine
from protocol.errors import Misconfigured
from runtime.clock import SystemClock
from tests.support.services import until


def source_of(folder, **keys):
    table = {"kind": "serial", "port": "port", "modalities": {"wind": {"columns": [0, 1]}}, **keys}
    return open_source(table, "source[0]", folder, None, SystemClock())


@pytest.fixture
def port(tmp_path):
    """(what the sensor writes to, what the port is)."""
    master, slave = os.openpty()
    (tmp_path / "port").symlink_to(os.ttyname(slave))
    yield master, slave
    os.close(master)
    os.close(slave)


async def rows(source, master, said, enough):
    """Rows once so many came; the sensor speaks when it is listened to."""

    async def speak():
        await until(lambda: "reads" in source.state)
        for part in said:
            os.write(master, part)
            await asyncio.sleep(0.03)

    speaker = asyncio.create_task(speak())
    got = []
    async with asyncio.timeout(10), aclosing(source.samples()) as stream:
        async for batch in stream:
            got += [(batch.modality, t, row.tolist()) for t, row in zip(batch.t, batch.values, strict=True)]
            if len(got) >= enough:
                break
    await speaker
    return got


async def test_columns_come_out_of_a_real_terminal_whatever_the_pieces(tmp_path, port):
    source = source_of(tmp_path, baud=115200)
    got = await rows(source, port[0], [b"ut,of\r\n1.5,270", b"\r\n2", b".5,280\r\n3.5,290\r\n"], 3)
    assert [row for _, _, row in got] == [[1.5, 270], [2.5, 280], [3.5, 290]]
    assert all(abs(t - time.time()) < 5 for _, t, _ in got)


async def test_the_port_is_raw_and_set_as_the_table_says(tmp_path, port):
    source = source_of(tmp_path, baud=38400, parity="even", data_bits=7, stop_bits=2)
    await rows(source, port[0], [b"x\n\x03\n1,2\n"], 1)
    given, out, control, local, _, speed, _ = termios.tcgetattr(port[1])
    assert (out, local) == (0, 0), "no echo, no editing, no translation"
    assert speed == termios.B38400
    assert control & termios.CSTOPB
    assert given & termios.IXON == 0


async def test_bad_lines_are_counted_and_shown_and_the_next_is_read(tmp_path, port):
    said = [b"x\n", b"1,2\n", b"1;2\n", b"\xff\xfe,2\n", b"a" * 3000 + b"\n", b"7\n", b"3,4\n"]
    source = source_of(tmp_path)
    got = await rows(source, port[0], said, 2)
    assert [row for _, _, row in got] == [[1, 2], [3, 4]]
    assert source.counters["bad_lines"] == 3
    assert source.counters["too_long_lines"] == 1
    assert "last bad line: no column 1 in 1 (b'7')" in source.state


def test_a_line_is_as_old_as_its_first_byte():
    lines = Lines(SerialLine(baud=1000, parity="even", stop_bits=2).byte_s, 100)
    assert SerialLine(baud=1000, parity="even", stop_bits=2).byte_s == pytest.approx(0.012)
    assert list(lines.feed(b"begun\n", 1.0)) == [], "reading began within it"
    got = list(lines.feed(b"abc\nde\nf", 10.0))
    assert [line for _, line in got] == [b"abc", b"de"]
    assert [t for t, _ in got] == pytest.approx([10 - 8 * 0.012, 10 - 4 * 0.012])
    (t, line), *_ = lines.feed(b"gh\n", 10.5)
    assert (line, t) == (b"fgh", pytest.approx(10.5 - 4 * 0.012))


def test_times_of_lines_never_go_back_but_a_clock_may():
    lines = Lines(0.01, 100)
    got = list(lines.feed(b"\n" + b"abcdef\n", 10.0)) + list(lines.feed(b"0123456789\n", 10.01))
    assert got[1][0] >= got[0][0]
    ((t, _),) = lines.feed(b"z\n", 5.0)
    assert t == pytest.approx(4.98), "the clock was set back"


def reader(kind="csv", separator=",", words=None, **modalities):
    made = {name: SerialModality(**keys) for name, keys in modalities.items()}
    return LineReader(made, kind, separator, words or {})


def test_json_lines_by_path():
    one = reader("json", wind={"paths": ["wind.speed", "wind.dirs[1]"], "factor": 0.5})
    found = one.rows(b'{"wind": {"speed": "3", "dirs": [1, 2]}}')
    np.testing.assert_array_equal(found["wind"], [[1.5, 1.0]])
    for line in (b'{"wind": 3}', b'{"wind": {"speed": "fast", "dirs": [1, 2]}}', b"{", b"3"):
        with pytest.raises(BadPayload):
            one.rows(line)


def test_nmea_sentences_by_prefix_with_their_checksum():
    one = reader(
        "nmea",
        words={"A": 1, "V": 0},
        wind={"columns": [1, 3], "prefix": "$WIMWV"},
        heat={"columns": [1], "prefix": "$WIXDR"},
    )
    found = one.rows(b"$WIMWV,214.8,R,0.1,K,A*28")
    np.testing.assert_allclose(found["wind"], [[214.8, 0.1]], rtol=1e-6)
    assert found.keys() == {"wind"}
    assert one.rows(b"$GPGGA,,,") == {}, "another's"
    with pytest.raises(BadPayload, match="checksum '29', not 28"):
        one.rows(b"$WIMWV,214.8,R,0.1,K,A*29")


def test_columns_by_white_space_and_words_and_empty_cells():
    one = reader(separator="", words={"ON": 1}, a={"columns": [1, 2]})
    np.testing.assert_array_equal(one.rows(b"  7   ON  3 ")["a"], [[1, 3]])
    np.testing.assert_array_equal(reader(a={"columns": [0, 1]}).rows(b"1,")["a"], [[1, np.nan]])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"baud": 1234}, r"source\[0\]: baud: 1234 cannot be set; the nearest are 1200, 1800"),
        ({"format": "json"}, r"modalities.wind: format 'json' takes paths"),
        ({"modalities": {"wind": {}}}, r"give either columns .* or paths"),
        ({"modalities": {"wind": {"paths": ["a..b"]}}, "format": "json"}, r"'a..b' is not a path"),
        ({"parity": "evn"}, r"source\[0\].parity"),
        ({"bauds": 9600}, r"source\[0\].bauds: unknown key; did you mean 'baud'"),
    ],
)
def test_a_wrong_table_names_the_key(tmp_path, keys, words):
    with pytest.raises(Misconfigured, match=words):
        source_of(tmp_path, **keys)


async def test_a_file_that_is_no_port_is_said(tmp_path):
    (tmp_path / "port").write_text("1,2\n")
    with pytest.raises(OSError, match="is it a serial port"):
        async with aclosing(source_of(tmp_path).samples()) as stream:
            await anext(stream)
