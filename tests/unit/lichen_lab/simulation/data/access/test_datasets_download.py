"""Downloads over links and from servers as they are: cut, slow, silent, wrong."""

import io
import socket
from dataclasses import replace
from random import Random

import pytest

from lichen_lab.simulation.data.access.download import DownloadLimits, download
from protocol.errors import Misconfigured, Reason, Refused, Transient
from tests.support.network import file_server as server
from tests.support.network.file_server import Answer, serving

CONTENT = Random(5).randbytes(300_000)
LIMITS = DownloadLimits(max_bytes=1_000_000, silence_s=20.0, pause_s=0.0, attempts=3)


def fetched(*script: Answer, limits: DownloadLimits = LIMITS) -> tuple[bytes, list[dict[str, str]]]:
    into = io.BytesIO()
    with serving(CONTENT, *script) as served:
        size = download(served.url, into, limits)
    assert size == len(into.getvalue())
    return into.getvalue(), served.asked


def fails(*script: Answer, limits: DownloadLimits = LIMITS) -> tuple[Exception, int]:
    with serving(CONTENT, *script) as served:
        with pytest.raises((Misconfigured, Refused, Transient)) as said:
            download(served.url, io.BytesIO(), limits)
        assert served.url in str(said.value)
    return said.value, len(served.asked)


def test_a_whole_file_comes_and_is_counted() -> None:
    seen: list[tuple[int, int | None]] = []
    into = io.BytesIO()
    with serving(CONTENT, server.whole) as served:
        download(served.url, into, LIMITS, lambda got, total: seen.append((got, total)))
    assert into.getvalue() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [got for got, _ in seen] == sorted({got for got, _ in seen})


def test_a_file_of_unknown_length_comes() -> None:
    data, asked = fetched(server.without_length)
    assert data == CONTENT
    assert len(asked) == 1


def test_after_a_cut_only_the_rest_is_asked_for() -> None:
    data, asked = fetched(server.cut(0.5), server.rest)
    assert data == CONTENT
    assert asked[1]["range"] == "bytes=150000-"
    assert asked[1]["if-range"] == '"one"'


def test_cut_chunks_go_on_where_they_ended() -> None:
    data, asked = fetched(server.cut_chunks, server.rest)
    assert data == CONTENT
    assert asked[1]["range"] == "bytes=150000-"


def test_a_date_serves_where_there_is_no_tag() -> None:
    date = "Mon, 22 May 2023 10:00:00 GMT"
    data, asked = fetched(server.cut(0.5, etag=None, Last_Modified=date), server.rest)
    assert data == CONTENT
    assert asked[1]["if-range"] == date


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_sure_sign_that_it_is_the_same_file_it_begins_again(etag: str | None) -> None:
    data, asked = fetched(server.cut(0.5, etag=etag), server.whole)
    assert data == CONTENT
    assert "range" not in asked[1]


def test_a_server_that_gives_the_whole_instead_of_the_rest_is_taken_from_the_beginning() -> None:
    data, asked = fetched(server.cut(0.7), server.whole)
    assert "range" in asked[1]
    assert data == CONTENT


def test_of_a_file_that_became_shorter_no_old_end_stays() -> None:
    def shorter(handler: server.Handler, content: bytes) -> None:
        server.whole(handler, content[:1000])

    assert fetched(server.cut(0.7), shorter)[0] == CONTENT[:1000]


def test_another_part_than_was_asked_for_is_not_joined() -> None:
    def other_part(handler: server.Handler, content: bytes) -> None:
        handler.head(206, Content_Length=10, Content_Range=f"bytes 0-9/{len(content)}")
        handler.wfile.write(content[:10])

    data, asked = fetched(server.cut(0.5), other_part, server.whole)
    assert data == CONTENT
    assert "range" not in asked[2]


def test_a_range_beyond_the_end_begins_again() -> None:
    data, asked = fetched(server.cut(0.5), server.says(416), server.whole)
    assert data == CONTENT
    assert "range" not in asked[2]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again_and_then_given_up_for_now(status: int) -> None:
    assert fetched(server.says(status), server.whole)[0] == CONTENT
    error, asked = fails(server.says(status))
    assert isinstance(error, Transient)
    assert f"answers {status}" in str(error)
    assert asked == LIMITS.attempts


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_file_that_is_not_there_is_not_asked_for_twice(status: int) -> None:
    error, asked = fails(server.says(status))
    assert isinstance(error, Misconfigured)
    assert asked == 1


def test_a_link_that_always_cuts_is_given_up() -> None:
    error, asked = fails(server.cut(0.1, etag=None))
    assert isinstance(error, Transient)
    assert "ended after 30000 of 300000 bytes; 3 attempts" in str(error)
    assert asked == LIMITS.attempts


def test_a_length_above_what_comes_is_a_cut() -> None:
    assert isinstance(fails(server.claims(400_000))[0], Transient)


@pytest.mark.parametrize("answer", [server.endless, server.claims(1_000_001)])
def test_more_than_the_bound_is_refused_at_once(answer: Answer) -> None:
    error, asked = fails(answer)
    assert isinstance(error, Refused)
    assert error.reason is Reason.TOO_LARGE
    assert asked == 1


def test_an_absurd_length_is_as_none() -> None:
    def absurd(handler: server.Handler, content: bytes) -> None:
        handler.head(200, Content_Length="9" * 5000)
        handler.wfile.write(content)

    assert fetched(absurd)[0] == CONTENT


def test_silence_and_dripping_end() -> None:
    error, _ = fails(server.silent, limits=replace(LIMITS, silence_s=0.2, attempts=1))
    assert isinstance(error, Transient)
    assert "no answer" in str(error)
    error, _ = fails(server.drips, limits=replace(LIMITS, slow_s=0.3, slow_bytes=10_000, attempts=1))
    assert isinstance(error, Transient)
    assert "too slow" in str(error)


def test_nobody_there_is_transient_and_other_schemes_are_not_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Transient, match="no connection"):
        download(f"http://127.0.0.1:{port}/a", io.BytesIO(), LIMITS)
    with pytest.raises(Misconfigured, match="only http"):
        download("file:///etc/hostname", io.BytesIO(), LIMITS)


def test_a_full_disk_is_not_taken_for_a_bad_link() -> None:
    class Full(io.BytesIO):
        def write(self, _data: object) -> int:
            raise OSError(28, "No space left on device")

    with serving(CONTENT, server.whole) as served, pytest.raises(OSError, match="No space"):
        download(served.url, Full(), LIMITS)
    assert len(served.asked) == 1
