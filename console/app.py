"""The application: who may see what, and the parts that were given."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import structlog
from markupsafe import Markup
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.access.forgery import SAFE, foreign, require_header
from console.navigation import TaskNames, header
from console.openapi import PREFIX, Trouble, document
from console.ports import Access, ConsolePart, Endpoint, Viewer, asks_for_region, status_of, viewer_of
from console.words import FILTERS
from protocol.errors import LichenError, Refused
from runtime.web import assets as static
from runtime.web.assets import Assets
from runtime.web.pages import Pages
from runtime.web.security import Guarded

log = structlog.get_logger(__name__)
_OPENAPI: Final = f"{PREFIX}/openapi.json"
_PLAIN: Final = {
    "Not Found": "there is no such page",
    "Method Not Allowed": "this page does not take that method",
}
"""Starlette's words, and those of a page."""
_EVENTS: Final = "text/event-stream"
_STILL_S: Final = 5.0
"""Whether the viewer of a stream of events is still signed in is asked so often."""


class Console:
    """The console as ``asgi``.

    Args:
        access: decides who views.
        parts: pages and operations.
        hosts: names under which a browser may reach it.
        given: further names of every template.
        tasks: the further tasks of the fleet; None: it has none.
    """

    def __init__(
        self,
        access: Access,
        parts: Sequence[ConsolePart],
        hosts: Iterable[str],
        *,
        given: Mapping[str, Any] | None = None,
        tasks: TaskNames | None = None,
    ) -> None:
        self._parts = parts
        self._tasks = tasks
        assets = Assets(name for one in parts for name in one.assets)
        packages = [*(name for one in parts for name in one.templates), "console"]
        self._pages = Pages(packages, assets, FILTERS, given)
        endpoints = [one for part in parts for one in part.endpoints]
        self._document = document(endpoints)
        routes = [
            assets.route,
            *access.routes,
            Route(_OPENAPI, self._openapi, methods=["GET"]),
            *(Route(PREFIX + one.path, _answering(one), methods=[one.method]) for one in endpoints),
            *(route for part in parts for route in part.routes),
        ]
        handlers: dict[Any, Any] = {
            LichenError: self._on_trouble,
            HTTPException: self._on_http,
            Exception: self._on_fault,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        self.asgi: ASGIApp = Guarded(_SignedIn(app, access, self), hosts)

    def render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """See :func:`console.ports.render`."""
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        links = [
            link
            for part in self._parts
            for link in part.navigation
            if viewer is not None and viewer.role >= link.role
        ]

        def controls(place: str, **subject: Any) -> str:
            found = (one.controls(request, place, subject) for one in self._parts if one.controls is not None)
            return Markup("" if viewer is None else "".join(found))  # noqa: S704 - each part escapes its own

        shown = {
            **header(request, links, () if self._tasks is None else self._tasks.names),
            "path": request.url.path,
            "viewer": viewer,
            "controls": controls,
            "region": asks_for_region(request),
        }
        return self._pages.answer(template, status, **shown, **values)

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        return JSONResponse(self._document)

    def failed(
        self, request: Request, status: int, words: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Why not, as the caller reads it."""
        if request.url.path.startswith(PREFIX):
            return JSONResponse(Trouble(error=words).model_dump(), status, headers)
        answer = self.render(request, "trouble.html", status=status, words=words)
        answer.headers.update(headers or {})
        return answer

    async def _on_trouble(self, request: Request, error: Exception) -> Response:
        return self.trouble(request, error)

    def trouble(self, request: Request, error: Exception) -> Response:
        """The answer to an error that says what is wrong."""
        words = error.detail if isinstance(error, Refused) else str(error)
        return self.failed(request, status_of(error), words)

    async def _on_http(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        detail, headers = (error.detail, error.headers) if isinstance(error, HTTPException) else ("", None)
        return self.failed(request, status, _PLAIN.get(detail, detail), headers)

    async def _on_fault(self, request: Request, error: Exception) -> Response:
        """An internal error: details are logged, and not shown."""
        log.error("internal_error", path=request.url.path[:128], error=repr(error)[:1000])
        return self.failed(request, 500, "an internal error; the log of lichen console has its details")


class _SignedIn:
    """Lets a request pass with its viewer; a page leads others to the sign-in, the API answers 401.

    A request that changes something, and that a page of another site sent, does not pass.
    """

    def __init__(self, app: ASGIApp, access: Access, console: Console) -> None:
        self._app = app
        self._access = access
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(static.PREFIX + "/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope.setdefault("state", {}).update(viewer=None, render=self._console.render)
        try:
            viewer = await self._access.who(request)
        except LichenError as error:
            await self._console.trouble(request, error)(scope, receive, send)
            return
        request.state.viewer = viewer
        words = "" if scope["method"] in SAFE else foreign(request)
        if words:
            await self._console.failed(request, 403, words)(scope, receive, send)
        elif viewer is None and not self._is_open(scope):
            await _turned_away(request, self._access.sign_in)(scope, receive, send)
        elif request.headers.get("accept") == _EVENTS:
            await self._stream(request, send)
        else:
            await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0].value > 0 for route in self._access.routes)

    async def _stream(self, request: Request, send: Send) -> None:
        """Answer with events for as long as the viewer is signed in."""
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        stream = asyncio.ensure_future(self._app(request.scope, request.receive, noted))
        still = asyncio.ensure_future(self._signed_in(request))
        try:
            await asyncio.wait({stream, still}, return_when=asyncio.FIRST_COMPLETED)
            is_over = not stream.done()
        finally:
            still.cancel()
            stream.cancel()
            await asyncio.wait({stream, still})
        if is_over and began:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not stream.cancelled():
            stream.result()

    async def _signed_in(self, request: Request) -> None:
        """Return when the viewer is not signed in any more."""
        while True:
            await asyncio.sleep(_STILL_S)
            try:
                if await self._access.who(request) is None:
                    return
            except LichenError:
                continue  # the tables are away for a moment


def _turned_away(request: HTTPConnection, sign_in: str) -> Response:
    path = request.url.path
    if path.startswith(PREFIX) or sign_in == path or request.headers.get("accept") == "text/event-stream":
        return JSONResponse(Trouble(error="sign in first").model_dump(), 401)
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"hx-redirect": sign_in})
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{sign_in}?next={quote(path + query)}", 303)


def _answering(one: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        viewer = viewer_of(request, one.role)
        if one.method not in SAFE:
            require_header(request, viewer)
        found = await one.handle(request)
        if not isinstance(found, BaseModel):
            return found
        return Response(found.model_dump_json(), media_type="application/json")

    return answer
