"""Headers that keep a page to itself, and bounds of what a browser sends."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
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
_BODY_S: Final = 20.0
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
    """The body of a request, bounded in bytes and seconds.

    Raises:
        Refused: TOO_LARGE; MALFORMED: the connection ended before the body did, or it came too slowly.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise Refused(Reason.TOO_LARGE, f"a body beyond {most} bytes")
    except TimeoutError:
        raise Refused(Reason.MALFORMED, f"the body did not come within {_BODY_S:g} s") from None
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


async def read_json(request: Request, most: int = MAX_BODY_BYTES) -> Any:
    """The JSON value that a program sent (``application/json``).

    Raises:
        Refused: TOO_LARGE; MALFORMED: another type, no JSON, a key twice, or nested too deeply.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(Reason.MALFORMED, f"a body of type {kind[:60] or 'none'}: send application/json")
    body = await read_body(request, most)
    try:
        return json.loads(body, object_pairs_hook=_once, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise Refused(Reason.MALFORMED, f"the body is no JSON of ours: {error}"[:200]) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _finite(word: str) -> None:
    raise ValueError(f"{word} is no number")
