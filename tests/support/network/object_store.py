"""An S3 server over HTTP (moto, in a process of its own), and a hostile proxy before it."""

import http.client
import itertools
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest

from coordinator.objects.s3_url import Credentials, parse
from tests.support.network.brokers import free_port

KEY, SECRET = "AKLICHENTESTKEY", "the-secret-of-the-test-key"
_NUMBERS = itertools.count()


def ask(url: str, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request to the server, without the client that is tested."""
    scope = f"{KEY}/20260101/us-east-1/s3/aws4_request"
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
    try:
        connection.request(method, path, body, {"Authorization": signed})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server; the test is skipped, loudly, if it or the client is not installed."""
    for module in ("moto", "flask", "obstore"):
        if find_spec(module) is None:
            pytest.skip(f"SKIPPED LOUDLY: {module} is not installed (pip install -e '.[dev]')")
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "moto.log"
    with log.open("wb") as out:
        command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "NO_PROXY": "*"})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the S3 server does not answer"
            try:
                ask(url, "GET", "/")
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield url
    finally:
        process.kill()
        process.wait(5)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """``storage.blobs`` of a new bucket; the environment has the access key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    name = f"lichen-{os.getpid()}-{next(_NUMBERS)}"
    assert ask(s3_server, "PUT", f"/{name}")[0] == 200
    return f"s3://{name}/fleet?endpoint={s3_server}"


def objects_at(url: str, timeout_s: float = 5.0) -> Any:
    """The store of a URL."""
    from coordinator.objects.s3 import S3Objects  # noqa: PLC0415 - the client may not be installed

    return S3Objects(parse(url), Credentials(KEY, SECRET), timeout_s)


class Proxy:
    """Passes requests on to an S3 server, and does what a test makes of them.

    ``fault``: called with the handler and the request's body; True: it has answered itself.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.removeprefix("http://")
        self.fault: Callable[[_Handler, bytes], bool] = lambda *_: False
        self.asked: list[tuple[str, str]] = []
        self.url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def _any(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.asked.append((self.command, self.path))
        if proxy.fault(self, body):
            self.close_connection = True
            return
        status, headers, data = self.passed_on(body)
        self.answer(status, data, headers)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    def passed_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The server's answer."""
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=10)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in {"connection", "host"}}
            connection.request(self.command, self.path, body, {**headers, "Host": self.server.proxy.upstream})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        given = {
            k: v for k, v in (headers or {}).items() if k.lower() not in {"connection", "date", "server"}
        }
        if self.command != "HEAD":
            given = {
                k: v for k, v in given.items() if k.lower() not in {"content-length", "transfer-encoding"}
            }
            given["Content-Length"] = str(len(data))
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def error(self, status: int, code: str, words: str = "") -> bool:
        """Answer as S3 does, with a text that quotes the secret, which nobody may repeat."""
        text = f"<Error><Code>{code}</Code><Message>{words or SECRET}</Message></Error>"
        self.answer(status, text.encode(), {"Content-Type": "application/xml"})
        return True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base names it
        """No log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some tests are about a client that gives up."""


@contextmanager
def hostile(bucket_url: str, tls: ssl.SSLContext | None = None) -> Iterator[tuple[Proxy, str]]:
    """A proxy before a bucket's server, and the bucket's URL through it; ``tls``: it speaks HTTPS."""
    before, _, endpoint = bucket_url.partition("?endpoint=")
    server = _Server(("127.0.0.1", 0), _Handler)
    server.proxy = proxy = Proxy(endpoint)
    proxy.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy, f"{before}?endpoint={proxy.url}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
