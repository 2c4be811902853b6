"""Requests to a console: JSON with limits, one session, and errors with the server's words.

Imports the standard library alone: a notebook needs nothing else.
"""

import contextlib
import html
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from protocol.errors import Misconfigured, Reason, Refused, Transient

PREFIX: Final = "/api/v1"
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_COOKIES: Final = ("__Host-lichen_console", "lichen_console")
_PART_BYTES: Final = 256 * 1024
_OF_FLEET: Final = re.compile(
    r"/(?:audit|enrolment|invites|links|people|session|tasks)(?:/|$)|/devices/[^/]+/(?:approve|revoke)$"
)
"""Operations that are the same for all tasks."""
_REASONS: Final = {
    403: Reason.UNTRUSTED,
    404: Reason.UNKNOWN_TASK,
    409: Reason.WRONG_ROUND,
    413: Reason.TOO_LARGE,
    429: Reason.FULL,
}
_SIGN_IN: Final = (
    "sign in first: Fleet(url, link=...) with a link of `lichen console link`, or Fleet(url, "
    "certificate=FILE) with the certificate of a person"
)
_TROUBLE: Final = re.compile(r"(?:<strong>Not signed in</strong>|<h1>Not possible</h1><p>)([^<]*)<")
"""Where the sign-in and a download, which are pages, say why not."""


class ConsoleRefused(Refused):
    """The console does not do what it was asked for; the message is its own words.

    ``reason`` is the nearest of the words that devices and coordinators exchange.
    """

    def __str__(self) -> str:
        return self.detail


@dataclass(frozen=True, slots=True)
class TlsNames:
    """Files for TLS (PEM); they are read at the first request.

    Attributes:
        ca: the authorities that are trusted; None: the machine's.
        certificate: of a person: a file with certificate and key, or both; empty: none.
    """

    ca: Path | None = None
    certificate: tuple[Path, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Read them.

        Raises:
            Misconfigured: a file is missing, or is no certificate or key; the message names it.
        """
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except (OSError, ssl.SSLError) as error:
            raise Misconfigured(f"ca: {self.ca}: {error.strerror or error}") from None
        if self.certificate:
            try:
                context.load_cert_chain(*map(str, self.certificate))
            except (OSError, ssl.SSLError) as error:
                named = ", ".join(map(str, self.certificate))
                raise Misconfigured(
                    f"certificate: {named}: no certificate with its key, as `lichen console person add "
                    f"--pem` writes it: {error.strerror or error}"
                ) from None
        return context


class ConsoleHttp:
    """One console, and at most one session with it.

    Args:
        url: ``http://127.0.0.1:8480`` or ``https://HOST:PORT``.
        tls: the trusted authorities and the certificate of a person.
        timeout_s: for a whole exchange; a download has it for each part.
        session: the cookie of a session that goes on; empty: none yet.

    Raises:
        Misconfigured: the address is no console's, or would send secrets over a network without TLS.
    """

    def __init__(self, url: str, tls: TlsNames, timeout_s: float, session: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
            raise Misconfigured(
                f"{url!r} is no console's address; write http://HOST:PORT or https://HOST:PORT"
            )
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise Misconfigured(f"{url!r}: a console serves other machines by TLS alone; write https://")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._port = port or (443 if self._secure else 80)
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._timeout_s = timeout_s
        self.session = session
        self._token = ""

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """The answer of an operation that only reads.

        Raises:
            Refused: the console does not answer that; its words.
            Misconfigured: nobody is signed in, or the server is not trusted.
            Transient: it cannot be reached, is too slow, or cannot answer now.
        """
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        return self._json("GET", f"{PREFIX}{path}{f'?{urlencode(asked)}' if asked else ''}", None, {})

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of an operation that changes something; as :meth:`get`."""
        if not self._token:
            self._token = str(self.get("/session").get("token", ""))
            if not self._token:
                raise Misconfigured(f"{self.url}: without a session one may only look; {_SIGN_IN}")
        given = {name: value for name, value in (body or {}).items() if value is not None}
        headers = {"content-type": "application/json", "x-csrf-token": self._token}
        return self._json("POST", f"{PREFIX}{path}", json.dumps(given).encode(), headers)

    def sign_in_by_link(self, link: str) -> None:
        """Begin a session by a one-time link, or the token at its end; errors as :meth:`get`."""
        query = parse_qs(urlsplit(link).query)
        self._sign_in("/sign-in", {"token": query["token"][0] if "token" in query else link.strip()})

    def sign_in_by_certificate(self) -> None:
        """Begin a session by the certificate of a person, which TLS shows; errors as :meth:`get`."""
        self._sign_in("/sign-in/certificate", {})

    def sign_out(self) -> None:
        """End the session, if there is one."""
        if not self.session:
            return
        token = str(self.get("/session").get("token", ""))
        headers = {"content-type": "application/x-www-form-urlencoded"}
        with self._exchange("POST", "/sign-out", urlencode({"csrf": token}).encode(), headers) as answer:
            self._read(answer)
        self.session = self._token = ""

    def download(self, path: str) -> Iterator[bytes]:
        """The parts of a file; errors as :meth:`get`, also after the first part."""
        with self._exchange("GET", path, None, {}) as answer:
            if answer.status != http.client.OK:
                raise self._trouble(answer.status, self._read(answer))
            left = int(answer.headers.get("content-length") or 0)
            while left > 0:
                part = answer.read(min(_PART_BYTES, left))
                if not part:
                    raise Transient(f"{self.url}{path}: the connection ended {left} bytes before the end")
                left -= len(part)
                yield part

    def _sign_in(self, path: str, form: Mapping[str, str]) -> None:
        self.session = self._token = ""
        headers = {"content-type": "application/x-www-form-urlencoded"}
        with self._exchange("POST", path, urlencode(form).encode(), headers) as answer:
            body = self._read(answer)
            cookies = [one.partition(";")[0] for one in answer.headers.get_all("set-cookie") or []]
        found = [one for one in cookies if one.partition("=")[0] in _COOKIES]
        if answer.status == http.client.SEE_OTHER and found:
            self.session = found[0]
            return
        raise self._trouble(answer.status, body)

    def _json(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        with self._exchange(method, path, body, headers) as answer:
            data = self._read(answer)
        if answer.status != http.client.OK:
            raise self._trouble(answer.status, data)
        try:
            return json.loads(data)
        except ValueError:
            words = f"{self.url}{path}: the answer is no JSON; no console?"
            raise ConsoleRefused(Reason.MALFORMED, words) from None

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """One request on a connection of its own; no redirect is followed."""
        cookie = {"cookie": self.session} if self.session else {}
        line = self._connection()
        given = {"accept": "application/json", "connection": "close", **cookie, **headers}
        try:
            line.request(method, path, body, given)
            with line.getresponse() as answer:
                yield answer
        except TimeoutError:
            raise Transient(f"{self.url} did not answer in {self._timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise Misconfigured(
                f"{self.url}: its certificate is not trusted ({error.verify_message}); give the fleet's "
                "authority with ca=, the file authority/ca.crt of the coordinator"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise Transient(
                f"{self.url} cannot be reached: {error or type(error).__name__}; does `lichen console serve` "
                "run?"
            ) from None
        finally:
            line.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        if self._context is None:
            self._context = self._tls.context()
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._context
        )

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        """The body, within its limits of bytes and of time."""
        end, parts, size = time.monotonic() + self._timeout_s, [], 0
        while part := answer.read1(_PART_BYTES):
            size += len(part)
            parts.append(part)
            if size > MAX_ANSWER_BYTES:
                words = f"{self.url}: an answer of over {MAX_ANSWER_BYTES} bytes"
                raise ConsoleRefused(Reason.TOO_LARGE, words)
            if time.monotonic() > end:
                raise Transient(f"{self.url} did not finish its answer in {self._timeout_s:g} s")
        return b"".join(parts)

    def _trouble(self, status: int, body: bytes) -> Misconfigured | Refused | Transient:
        """The error for a status, with the server's words."""
        try:
            words = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            page = _TROUBLE.search(body.decode(errors="replace"))
            words = f"HTTP status {status}" if page is None else html.unescape(page[1]).strip()
        if status == http.client.UNAUTHORIZED:
            return Misconfigured(f"{self.url}: {_SIGN_IN}")
        if status >= http.client.INTERNAL_SERVER_ERROR:
            return Transient(f"{self.url}: {words}")
        return ConsoleRefused(_REASONS.get(status, Reason.MALFORMED), f"{self.url}: {words}")


def path_of(task: str, path: str) -> str:
    """The path of an operation of a further task; those that are the fleet's have one path for all tasks."""
    return path if not task or _OF_FLEET.match(path) else f"/tasks/{quote(task, safe='')}{path}"


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
