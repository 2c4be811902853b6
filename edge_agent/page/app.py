"""The page's answers: everything about the device comes from the agent, by its local interface."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from edge_agent.labels import local_client
from edge_agent.labels.requests import Live, read_request
from edge_agent.page.access import SESSION_S, PageAccess
from edge_agent.page.idle import IdleTimer
from protocol.errors import LichenError, Reason, Refused
from runtime.web.assets import Assets
from runtime.web.pages import Pages
from runtime.web.security import Guarded, read_body

COOKIE: Final = "lichen_page"
CSRF_HEADER: Final = "x-csrf-token"
_MAX_BODY: Final = 1024
_MAX_TOKEN: Final = 200
_NO_SESSION: Final = "this page needs a link: run lichen agent page --link on the device"
Answer = Callable[[Request, str], Awaitable[Response]]


class DevicePage:
    """The page of one device.

    Args:
        socket: of the agent's local interface.
        device: its name.
        access: links and sessions.
        hosts: names under which browsers reach this page.
        idle: knows whether somebody looks.
    """

    def __init__(
        self, socket: Path, device: str, access: PageAccess, hosts: list[str], idle: IdleTimer
    ) -> None:
        self._socket = socket
        self._access = access
        assets = Assets(["edge_agent.page"])
        self._pages = Pages(["edge_agent.page"], assets, given={"device": device})
        self._app = Starlette(
            routes=[
                Route("/", self._page, methods=["GET"]),
                Route("/enter", self._enter, methods=["GET"]),
                Route("/live", self._for_session(self._live), methods=["GET"]),
                Route("/api/ask", self._for_session(self._ask), methods=["POST"]),
                assets.route,
            ],
        )
        self.asgi = idle.watching(Guarded(self._app, hosts))

    def _session(self, request: Request) -> str | None:
        return self._access.session_of(request.cookies.get(COOKIE, ""))

    def _for_session(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return JSONResponse({"error": _NO_SESSION}, 403)
            return await answer(request, session)

        return answered

    async def _page(self, request: Request) -> Response:
        session = self._session(request)
        if session is None:
            return self._pages.answer("closed.html", 403)
        return self._pages.answer("device.html", csrf=self._access.csrf(session))

    async def _enter(self, request: Request) -> Response:
        token = request.query_params.get("token", "")[:_MAX_TOKEN]
        if request.method == "HEAD":  # a preview of the link must not use it up
            return Response()
        session = await asyncio.to_thread(self._access.redeem, token)
        if session is None:
            return self._pages.answer("closed.html", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, session, max_age=int(SESSION_S), httponly=True, samesite="lax")
        return answer

    async def _ask(self, request: Request, session: str) -> Response:
        """A request of the local interface, as a browser sends it."""
        if not self._access.is_csrf(session, request.headers.get(CSRF_HEADER, "")):
            return JSONResponse({"error": "the form is not of this page: load it again"}, 403)
        try:
            asked = read_request(await read_body(request, _MAX_BODY))
            if isinstance(asked, Live):
                return JSONResponse({"error": "the live signal is at /live"}, 409)
            return JSONResponse({"ok": await asyncio.to_thread(local_client.ask, self._socket, asked)})
        except Refused as error:
            status = 413 if error.reason is Reason.TOO_LARGE else 409
            return JSONResponse({"error": error.words}, status)
        except LichenError as error:
            return JSONResponse({"error": str(error)}, 503)

    async def _live(self, _request: Request, _session: str) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._messages(), headers=headers, media_type="text/event-stream")

    async def _messages(self) -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        try:
            async with aclosing(local_client.live(self._socket)) as messages:
                async for message in messages:
                    yield _event("now", message)
            yield _event("trouble", {"error": "the agent has ended; it is asked again"})
        except LichenError as error:
            yield _event("trouble", {"error": error.words if isinstance(error, Refused) else str(error)})


def _event(name: str, message: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(message)}\n\n"
