"""Large blobs over HTTPS: what is opened, what is believed, and chunks where it fails."""

import asyncio
import hashlib
import itertools
import random
import re
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.messaging.blob_download import BlobDownload, download_of, permitted
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import BlobRef, Fetch, decode
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.support.identity.pki import Pki
from tests.support.services import until

CHUNK = 4096
DATA = random.Random(1).randbytes(20 * CHUNK + 7)
REF = BlobRef(digest=hashlib.sha256(DATA).hexdigest(), size=len(DATA))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, _request, _client) -> None:
        """Some tests are about a client that gives up."""


class Site:
    """An HTTPS server of one blob. ``fault`` may answer a request itself (True)."""

    def __init__(self) -> None:
        self.ranges: list[str] = []
        self.data = DATA
        self.fault = lambda *_: False
        self.url = self.host = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.ranges.append(handler.headers["Range"])
        handler.close_connection = True
        if self.fault(handler, len(self.ranges)):
            return
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
        self.send(handler, 206, self.data[first : last + 1], f"bytes {first}-{last}/{len(self.data)}")

    def send(self, handler, status, body, content_range="", announced=None, **headers) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if announced is None else announced))
        if content_range:
            handler.send_header("Content-Range", content_range)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)
        return True


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@contextmanager
def serving(pki, site):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *_) -> None:
            """No log."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server(["127.0.0.1"]))
    server = _Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.host = f"127.0.0.1:{server.server_port}"
    site.url = f"https://{site.host}/bucket/blob?X-Amz-Signature=hush"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def site(pki):
    made = Site()
    with serving(pki, made):
        yield made


@pytest.fixture
def download(pki, site):
    return BlobDownload((site.host,), ssl.create_default_context(cafile=str(pki.ca)), timeout_s=10.0)


@pytest.fixture
def partial(tmp_path):
    return BlobStore(tmp_path / "blobs").partial(REF, CHUNK)


async def test_a_blob_is_downloaded_with_one_request(site, download, partial) -> None:
    await download(site.url, partial)
    assert partial.verified() == DATA
    assert site.ranges == [f"bytes=0-{len(DATA) - 1}"]


async def test_a_cut_connection_is_continued_where_it_was_cut(site, download, partial) -> None:
    def cut(handler, number) -> bool:
        ends = f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        return number == 1 and site.send(handler, 206, DATA[: 3 * CHUNK + 5], ends, announced=len(DATA))

    site.fault = cut
    with pytest.raises(Transient, match=r"127\.0\.0\.1"):
        await download(site.url, partial)
    assert partial.missing() == ((3, 20),)
    await download(site.url, partial)
    assert partial.verified() == DATA
    assert site.ranges[1] == f"bytes={3 * CHUNK}-{len(DATA) - 1}"


async def test_a_server_without_ranges_is_read_from_the_begin_and_not_believed_otherwise(
    site, download, partial
) -> None:
    site.fault = lambda handler, _: site.send(handler, 200, DATA)
    partial.add(0, DATA[:CHUNK])
    with pytest.raises(Transient, match="status 200"):
        await download(site.url, partial)
    partial.discard()
    fresh = BlobStore(partial._store._root).partial(REF, CHUNK)
    await download(site.url, fresh)
    assert fresh.verified() == DATA


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((302, b"", "", {"Location": "https://127.0.0.1:1/elsewhere"}), "status 302"),
        ((403, b"<Error/>", "", {}), "status 403"),
        ((206, DATA, "bytes 9-99/100", {}), "another range"),
        ((206, DATA, "", {}), "another range"),
        ((200, DATA + b"more", "", {}), "status 200"),
    ],
)
async def test_any_other_answer_is_a_failure(site, download, partial, answer, error) -> None:
    status, body, content_range, headers = answer
    site.fault = lambda handler, _: site.send(handler, status, body, content_range, **headers)
    with pytest.raises((Refused, Transient), match=error) as caught:
        await download(site.url, partial)
    assert "hush" not in str(caught.value)
    assert len(site.ranges) == 1, "no redirect is followed"


async def test_no_byte_beyond_the_blobs_size_is_read(site, download, partial) -> None:
    def endless(handler, _) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(DATA) - 1}/{len(DATA)}")
        handler.end_headers()
        with suppress(OSError):  # the client hangs up
            for _ in range(10_000):
                handler.wfile.write(bytes(CHUNK))
        return True

    site.fault = endless
    await download(site.url, partial)
    with pytest.raises(Refused, match="SHA-256 differs"):
        partial.verified()


async def test_a_trickle_ends_with_the_time_and_keeps_what_came(pki, site, partial) -> None:
    def trickle(handler, _) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.send_header("Content-Range", f"bytes 0-{len(DATA) - 1}/{len(DATA)}")
        handler.end_headers()
        handler.wfile.write(DATA[: CHUNK + 1])
        with suppress(OSError):  # the client hangs up
            for n in itertools.count():
                handler.wfile.write(DATA[n % CHUNK : n % CHUNK + 1])
                time.sleep(0.01)
        return True

    site.fault = trickle
    slow = BlobDownload((site.host,), ssl.create_default_context(cafile=str(pki.ca)), timeout_s=0.3)
    with pytest.raises(Transient):
        await slow(site.url, partial)
    assert partial.missing()[0][0] >= 1


async def test_a_cancelled_download_ends_its_thread_first(site, download, partial) -> None:
    hold = threading.Event()
    site.fault = lambda *_: hold.wait(30)
    task = asyncio.create_task(download(site.url, partial))
    await until(lambda: site.ranges)
    threads = threading.active_count()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hold.set()
    assert threading.active_count() <= threads


async def test_a_certificate_of_another_authority_is_not_trusted(site, partial) -> None:
    stranger = BlobDownload((site.host,), ssl.create_default_context(), timeout_s=10.0)
    with pytest.raises(Transient, match=r"self-signed|unable to get local issuer"):
        await stranger(site.url, partial)
    assert site.ranges == []


HOSTS = ("blobs.example.org", "10.0.0.5:9000")


@pytest.mark.parametrize(
    "url",
    [
        "https://blobs.example.org/b/1?X=1",
        "https://BLOBS.example.org:443/b",
        "https://10.0.0.5:9000/",
    ],
)
def test_urls_of_the_operators_hosts_may_be_opened(url) -> None:
    assert permitted(url, HOSTS).host in {"blobs.example.org", "10.0.0.5"}


@pytest.mark.parametrize(
    "url",
    [
        "http://blobs.example.org/hush",
        "https://blobs.example.org:8443/hush",
        "https://10.0.0.5/hush",
        "https://169.254.169.254/hush",
        "https://localhost/hush",
        "https://blobs.example.org@evil.org/hush",
        "https://hush@blobs.example.org/",
        "https://blobs.example.org.evil.org/hush",
        "https://evil.org/blobs.example.org?hush",
        "https://blobs.example.org:99999/hush",
        "file:///hush",
        "https://blobs.example.org/hush\r\nHost: evil",
        "https://blobs.example.org/hush x",
        "https://blobs.exämple.org/hush",
        "//blobs.example.org/hush",
        "https:///hush",
        "",
        "https://[::1/hush",
    ],
)
def test_no_other_url_is_opened_whoever_sent_it(url) -> None:
    with pytest.raises(Refused) as caught:
        permitted(url, HOSTS)
    assert caught.value.reason in {Reason.UNTRUSTED, Reason.MALFORMED}
    assert "hush" not in str(caught.value)


def test_without_hosts_nothing_is_downloaded_and_a_wrong_file_is_named(tmp_path) -> None:
    settings = AgentSettings(fleet="f", device="d")
    assert download_of(settings) is None
    wrong = {"hosts": ("h",), "ca_file": str(tmp_path / "none")}
    with pytest.raises(Misconfigured, match=r"download\.ca_file: .*No such file"):
        download_of(AgentSettings(fleet="f", device="d", download=wrong))


class Wire:
    """A coordinator that answers a request for a download with a URL, and others with chunks."""

    def __init__(self, root, url, download) -> None:
        self.asked: list[bool | None] = []
        self._url = url
        self.fetcher = Fetcher(
            self.publish, "f", "d", BlobStore(root), CHUNK, window=4, stall_s=5.0, download=download
        )

    async def publish(self, _topic, payload, **_) -> None:
        fetch = decode(payload, Fetch)
        self.asked.append(fetch.download)
        if fetch.download:
            self.fetcher.on_url(REF.digest, self._url)
            return
        for index in range(fetch.first, fetch.first + fetch.count):
            self.fetcher.on_chunk(REF.digest, index, DATA[index * CHUNK : (index + 1) * CHUNK])


async def test_a_fetch_follows_the_url_and_takes_chunks_where_that_fails(site, download, tmp_path) -> None:
    good = Wire(tmp_path / "good", site.url, download)
    assert (await good.fetcher.fetch(REF, 20)).read_bytes() == DATA
    assert good.asked == [True]
    site.fault = lambda handler, _: site.send(handler, 503, b"")
    for name, url in (("fails", site.url), ("barred", "https://evil.example/x")):
        wire = Wire(tmp_path / name, url, download)
        assert (await wire.fetcher.fetch(REF, 20)).read_bytes() == DATA
        assert wire.asked[0] is True
        assert set(wire.asked[1:]) == {None}
    off = Wire(tmp_path / "off", site.url, None)
    asked = len(site.ranges)
    pulling = asyncio.create_task(off.fetcher.fetch(REF, 20))
    await until(lambda: off.asked)
    off.fetcher.on_url(REF.digest, site.url)
    assert (await pulling).read_bytes() == DATA
    assert len(site.ranges) == asked, "a URL that nobody asked for"


async def test_wrong_bytes_of_a_server_are_replaced_by_the_coordinators(site, download, tmp_path) -> None:
    site.data = bytes(len(DATA))
    wire = Wire(tmp_path, site.url, download)
    assert (await wire.fetcher.fetch(REF, 20)).read_bytes() == DATA
    assert wire.asked[0] is True
    assert None in wire.asked
