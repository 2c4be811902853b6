"""An enrolment service for tests of the device: HTTPS, the real authority behind it, hooks to misbehave."""

import base64
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.identity.certificates import common_name, key_print, requested_key
from protocol.enrolment import (
    CA_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolAnswer,
    EnrolRefusal,
    EnrolRequest,
    Invite,
    RenewRequest,
)
from protocol.errors import Reason
from tests.support.identity.pki import FLEET, HOST, Pki

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "t" * 32
Reply = tuple[int, bytes]


class Stub:
    """Use as a context manager; ``requests`` are (path, body) in order of arrival.

    ``on_request(path, body)`` may return a reply of its own, raise, or return None for the ordinary one;
    ``raw(handler)``, if set, answers on the socket itself.
    """

    def __init__(self, pki: Pki, certificate: Path | None = None) -> None:
        self.pki = pki
        self.requests: list[tuple[str, bytes]] = []
        self.on_request: Callable[[str, bytes], Reply | None] = lambda _p, _b: None
        self.raw: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.date: str | None = None
        """A ``Date`` header other than the machine's."""
        self.pending = 0
        """This many replies are ``pending``."""
        self.keys: dict[str, str] = {}
        """Token -> the fingerprint of the key that used it."""
        self.exchanged: dict[int, str] = {}
        """Serial of an old certificate -> the fingerprint of the key it was exchanged for: at most one."""
        self.issued: list[str] = []
        self.faults: list[BaseException] = []
        self.broker_port = 8883
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate or pki.server())
        self._server = _Server((HOST, 0), _Handler)
        self._server.stub = self
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()
        assert not self.faults, self.faults

    def invite(self, device: str | None = "d1", **changes: Any) -> Invite:
        values = {
            "url": self.url,
            "ca_sha256": self.pki.authority.ca_sha256,
            "token": TOKEN,
            "device": device,
        }
        return Invite.model_validate(values | changes)

    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def answer(self, path: str, body: bytes) -> Reply:
        self.requests.append((path, body))
        if (own := self.on_request(path, body)) is not None:
            return own
        if path == CA_PATH:
            return 200, self.pki.authority.ca_pem.encode()
        if path == ENROL_PATH:
            return self._enrol(EnrolRequest.model_validate_json(body))
        if path == RENEW_PATH:
            return self._renew(RenewRequest.model_validate_json(body))
        return 404, b"no such page"

    def _enrol(self, request: EnrolRequest) -> Reply:
        key = key_print(requested_key(request.csr))
        if request.token != TOKEN or self.keys.setdefault(request.token, key) != key:
            return refusal(Reason.BAD_INVITE, "this invite was used with another key")
        if self.pending > 0:
            self.pending -= 1
            return 202, _json(EnrolAnswer(status="pending", fleet=FLEET, device=request.device, wait_s=2.0))
        return self._issue(request.csr, request.device)

    def _renew(self, request: RenewRequest) -> Reply:
        old = x509.load_pem_x509_certificate(request.certificate.encode())
        if not self.pki.authority.signed_by_us(old):
            return refusal(Reason.REVOKED, "not one of ours")
        public = old.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        signed = b"lichen renew v1\n" + request.csr.encode()
        public.verify(base64.b64decode(request.signature), signed, ec.ECDSA(hashes.SHA256()))
        key = key_print(requested_key(request.csr))
        if self.exchanged.setdefault(old.serial_number, key) != key:
            return refusal(Reason.REVOKED, "exchanged before, with another key")
        return self._issue(request.csr, common_name(old))

    def _issue(self, csr: str, device: str) -> Reply:
        made = self.pki.authority.issue_device(csr, device)
        self.issued.append(made.certificate_pem)
        return 200, _json(
            EnrolAnswer(
                status="issued",
                fleet=FLEET,
                device=device,
                certificate=made.certificate_pem,
                ca=self.pki.authority.ca_pem,
                broker_host=HOST,
                broker_port=self.broker_port,
            )
        )


def refusal(reason: Reason, detail: str, status: int = 403) -> Reply:
    return status, _json(EnrolRefusal(reason=reason, detail=detail))


def _json(model: Any) -> bytes:
    return bytes(model.model_dump_json(exclude_none=True).encode())


class _Server(ThreadingHTTPServer):
    stub: Stub
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the standard library's signature
        """A client that was cut off, or does not trust us, is part of a test; any other error is a fault."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.stub.faults.append(error)

    def shutdown_request(self, request: Any) -> None:
        try:
            request.close()
        except OSError:
            return


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 20

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's signature
        """No log."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return self.server.stub.date or super().date_time_string(timestamp)

    def do_GET(self) -> None:
        self._do(b"")

    def do_POST(self) -> None:
        self._do(self.rfile.read(int(self.headers["Content-Length"])))

    def _do(self, body: bytes) -> None:
        stub = self.server.stub
        if stub.raw is not None:
            stub.requests.append((self.path, body))
            stub.raw(self)
            return
        status, data = stub.answer(self.path, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """One byte every tenth of a second, without end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


class Silent:
    """Accepts TCP and sends nothing, not even TLS. ``url``; use as a context manager."""

    def __enter__(self) -> Self:
        self._socket = socket.create_server((HOST, 0))
        self.url = f"https://{HOST}:{self._socket.getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
