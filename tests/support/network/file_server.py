"""An HTTP server of one file with scripted responses; records the requests."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """One request; the script's next response, or its last one again."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        served = self.server.served
        served.asked.append({key.lower(): value for key, value in self.headers.items()})
        self.close_connection = True
        script = served.script
        script[min(len(served.asked), len(script)) - 1](self, served.content)

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base names it
        """No log."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    served: "Served"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some tests are about a client that disconnects."""


@dataclass
class Served:
    """The content, the script, and the headers of each request."""

    content: bytes
    script: list[Answer]
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving(content: bytes, *script: Answer) -> Iterator[Served]:
    server = Server(("127.0.0.1", 0), Handler)
    server.served = Served(content, list(script) or [whole], f"http://127.0.0.1:{server.server_port}/a.zip")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def whole(handler: Handler, content: bytes) -> None:
    handler.head(200, Content_Length=len(content), ETag='"one"')
    handler.wfile.write(content)


def without_length(handler: Handler, content: bytes) -> None:
    """In chunks, as a server that packs on the fly."""
    handler.head(200, Transfer_Encoding="chunked")
    for at in range(0, len(content), 5000):
        block = content[at : at + 5000]
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
    handler.wfile.write(b"0\r\n\r\n")


def cut_chunks(handler: Handler, content: bytes) -> None:
    handler.head(200, Transfer_Encoding="chunked", ETag='"one"')
    handler.wfile.write(b"%x\r\n%s" % (len(content), content[: len(content) // 2]))


def cut(share: float = 0.5, etag: str | None = '"one"', **headers: object) -> Answer:
    """Send a part, and close the connection."""

    def answer(handler: Handler, content: bytes) -> None:
        tag = {} if etag is None else {"ETag": etag}
        handler.head(200, Content_Length=len(content), **tag, **headers)
        handler.wfile.write(content[: int(share * len(content))])

    return answer


def rest(handler: Handler, content: bytes) -> None:
    """Answer a range request."""
    first = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    span = f"bytes {first}-{len(content) - 1}/{len(content)}"
    handler.head(206, Content_Length=len(content) - first, Content_Range=span, ETag='"one"')
    handler.wfile.write(content[first:])


def says(status: int) -> Answer:
    def answer(handler: Handler, _content: bytes) -> None:
        handler.head(status, Content_Length=0)

    return answer


def claims(length: int) -> Answer:
    """Claim another length than the content has."""

    def answer(handler: Handler, content: bytes) -> None:
        handler.head(200, Content_Length=length)
        handler.wfile.write(content)

    return answer


def silent(handler: Handler, _content: bytes) -> None:
    """Read the request and send nothing until the client disconnects."""
    handler.connection.settimeout(30)
    handler.connection.recv(1)


def drips(handler: Handler, content: bytes) -> None:
    """Never silent, never done."""
    handler.head(200, Content_Length=len(content))
    for at in range(len(content)):
        handler.wfile.write(content[at : at + 1])
        time.sleep(0.01)


def endless(handler: Handler, _content: bytes) -> None:
    handler.head(200, Transfer_Encoding="chunked")
    while True:
        handler.wfile.write(b"%x\r\n%s\r\n" % (4096, bytes(4096)))
