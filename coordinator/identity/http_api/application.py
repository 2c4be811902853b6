"""Enrolment over HTTPS: the routes, and the limits for strangers.

``GET /v1/ca``, ``POST /v1/enrol``, ``POST /v1/renew`` (protocol.enrolment). Every answer but the first is
JSON; every failure is an ``EnrolRefusal``. Bodies are bounded before they are read and have a deadline;
attempts are counted per address and in total; at most two are processed at a time, so that a flood here slows
down nothing else.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.http_api.rate_limit import Throttle
from protocol.base import Wire
from protocol.enrolment import (
    CA_PATH,
    ENROL_PATH,
    MAX_BODY_BYTES,
    RENEW_PATH,
    EnrolAnswer,
    EnrolRefusal,
    EnrolRequest,
    RenewRequest,
)
from protocol.errors import LichenError, Reason, Refused
from runtime.text import peer_of

if TYPE_CHECKING:
    from starlette.types import ExceptionHandler

log = structlog.get_logger(__name__)

W = TypeVar("W", bound=Wire)
BODY_S: Final = 10.0
_MAX_CONCURRENT_ENROLMENTS: Final = 2
_MAX_WAITING: Final = 64
_LOG_LINES_A_SECOND: Final = 1.0
_STATUS: Final = {
    Reason.TOO_LARGE: 413,
    Reason.FULL: 429,
    Reason.BAD_INVITE: 403,
    Reason.REVOKED: 403,
    Reason.UNKNOWN_DEVICE: 403,
}
_RETRY_AFTER_S: Final = 30


class EnrolmentApp:
    """The HTTP application, as ``asgi``.

    Args:
        desk: decides.
        enrolled: called after each issued certificate.
        throttle: limits the rate of attempts.
        now: monotonic seconds.
    """

    def __init__(
        self,
        desk: EnrolmentAuthority,
        enrolled: Callable[[], None],
        throttle: Throttle | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._enrolled = enrolled
        self._now = now
        self._throttle = throttle or Throttle(rate=2.0, burst=60.0, total_rate=50.0, total_burst=200.0)
        self._voice = Throttle(
            rate=_LOG_LINES_A_SECOND, burst=20.0, total_rate=_LOG_LINES_A_SECOND, total_burst=20.0
        )
        self._room = asyncio.Semaphore(_MAX_CONCURRENT_ENROLMENTS)
        self._waiting = 0
        self.issued = 0
        self.refused: Counter[Reason] = Counter()
        handlers: dict[int | type[Exception], ExceptionHandler] = {
            Refused: self._on_refused,
            LichenError: self._on_trouble,
            HTTPException: self._on_http,
            Exception: self._on_fault,
        }
        routes = [
            Route(CA_PATH, self._counted(self._ca), methods=["GET"]),
            Route(ENROL_PATH, self._counted(self._enrol), methods=["POST"]),
            Route(RENEW_PATH, self._counted(self._renew), methods=["POST"]),
        ]
        self.asgi = Starlette(routes=routes, exception_handlers=handlers)

    def _counted(
        self, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            wait = self._throttle.wait_s(_peer(request), self._now())
            if wait > 0:
                refusal = EnrolRefusal(reason=Reason.FULL, detail=f"too many attempts; wait {wait:.0f} s")
                self.refused[Reason.FULL] += 1
                return _json(429, refusal, retry_s=int(wait) + 1)
            return await handle(request)

        return counted

    async def _ca(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        return _text(200, self._desk.authority.ca_pem.encode(), "application/x-pem-file")

    async def _enrol(self, request: Request) -> Response:
        asked = await _read(request, EnrolRequest)
        return await self._answer(request, lambda: self._desk.enrol(asked))

    async def _renew(self, request: Request) -> Response:
        asked = await _read(request, RenewRequest)
        return await self._answer(request, lambda: self._desk.renew(asked))

    async def _answer(self, request: Request, ask: Callable[[], EnrolAnswer]) -> Response:
        if self._waiting >= _MAX_WAITING:
            return _busy()
        self._waiting += 1
        try:
            async with self._room:
                answer = await asyncio.to_thread(ask)
        finally:
            self._waiting -= 1
        if answer.status == "issued":
            self.issued += 1
            self._enrolled()
            log.info("issued", device=answer.device, path=request.url.path, peer=_peer(request))
        return _json(200, answer)

    async def _on_refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, Refused):
            raise error
        self.refused[error.reason] += 1
        if self._voice.wait_s("", self._now()) == 0.0:
            log.warning("refused", why=str(error), path=request.url.path[:64], peer=_peer(request))
        refusal = EnrolRefusal(reason=error.reason, detail=error.detail[:500])
        return _json(_STATUS.get(error.reason, 400), refusal)

    async def _on_trouble(self, request: Request, error: Exception) -> Response:
        """A full disk or a damaged store: ours to mend; the device tries again."""
        log.error("device_not_answered", why=str(error), path=request.url.path[:64])
        return _busy()

    async def _on_http(self, request: Request, error: Exception) -> Response:  # noqa: ARG002 - starlette's signature
        status = error.status_code if isinstance(error, HTTPException) else 400
        self.refused[Reason.MALFORMED] += 1
        words = f"there are {CA_PATH} (GET), {ENROL_PATH} and {RENEW_PATH} (POST)"
        return _json(status, EnrolRefusal(reason=Reason.MALFORMED, detail=words))

    async def _on_fault(self, request: Request, error: Exception) -> Response:
        """An internal error: details are logged, and not sent to the stranger."""
        log.error("internal_error", path=request.url.path[:64], error=repr(error))
        return _busy()


async def _read(request: Request, model: type[W]) -> W:
    """The body as a message; at most the limit is held in memory.

    Raises:
        Refused: TOO_LARGE, or MALFORMED (no length, too slow, not that message).
    """
    given = request.headers.get("content-length", "")
    if not given.isdecimal() or not given.isascii():
        raise Refused(Reason.MALFORMED, "a body needs its Content-Length")
    if len(given) > len(str(MAX_BODY_BYTES)) or int(given) > MAX_BODY_BYTES:
        raise Refused(Reason.TOO_LARGE, f"a body of {given[:20]} bytes; at most {MAX_BODY_BYTES}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(Reason.TOO_LARGE, f"a body beyond {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise Refused(Reason.MALFORMED, f"the body did not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(Reason.MALFORMED, "the connection ended before the body did") from None
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][:3])
        raise Refused(Reason.MALFORMED, f"{where or 'body'}: {first['msg']}"[:300]) from None


def _peer(request: Request) -> str:
    return peer_of(request.client.host) if request.client else "?"


def _busy() -> Response:
    words = "the coordinator cannot answer now; its log says why"
    return _json(503, EnrolRefusal(reason=Reason.FULL, detail=words), retry_s=_RETRY_AFTER_S)


def _json(status: int, message: Wire, retry_s: int | None = None) -> Response:
    body = message.model_dump_json(exclude_none=True).encode()
    response = _text(status, body, "application/json")
    if retry_s is not None:
        response.headers["retry-after"] = str(retry_s)
    return response


def _text(status: int, body: bytes, kind: str) -> Response:
    # The date gives a device without a clock the approximate time.
    headers = {
        "date": formatdate(usegmt=True),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return Response(body, status, headers, media_type=kind)
