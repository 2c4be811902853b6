"""Headers that keep a page to itself, and bounds of what a browser sends."""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import Reason, Refused

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
MAX_BODY_BYTES: Final = 64 * 1024
_FIELDS: Final = 200


class Guarded:
    """An ASGI application whose answers have :data:`HEADERS` and are not stored unless they say so.

    Args:
        app: the application.
        hosts: names and addresses, without a port, that a browser may use for this server: a page of
            elsewhere whose name leads here (DNS rebinding) is refused. ``*``: any.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if self._knows(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, guarded)
        else:
            words = "this server is not known under that name (--host names it)\n"
            await PlainTextResponse(words, 421)(scope, receive, guarded)

    def _knows(self, host: str) -> bool:
        name = host.lower()
        if not name.endswith("]"):
            name = name.rpartition(":")[0] or name
        return "*" in self._hosts or name.strip("[]") in self._hosts


async def read_body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    """The body of a request, bounded before it is held.

    Raises:
        Refused: TOO_LARGE; MALFORMED: the connection ended before the body did.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise Refused(Reason.TOO_LARGE, f"a body beyond {most} bytes")
    except ClientDisconnect:
        raise Refused(Reason.MALFORMED, "the connection ended before the body did") from None
    return bytes(body)


async def read_form(request: Request, most: int = MAX_BODY_BYTES) -> dict[str, str]:
    """The fields of a form that a browser sent (``application/x-www-form-urlencoded``).

    Raises:
        Refused: TOO_LARGE; MALFORMED: another type, no UTF-8, a field twice, or too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(Reason.MALFORMED, f"a form of type {kind[:60] or 'none'}")
    body = await read_body(request, most)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict")
    except ValueError:  # UnicodeDecodeError is one
        raise Refused(
            Reason.MALFORMED, f"a form that is no UTF-8, or of more than {_FIELDS} fields"
        ) from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Refused(Reason.MALFORMED, "a form with a field twice")
    return fields
