"""The application: who may see what, and the parts that were given."""

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
from starlette.types import ASGIApp, Receive, Scope, Send

from console.openapi import PREFIX, Trouble, document
from console.ports import Access, ConsolePart, Endpoint, Viewer, viewer_of
from console.words import FILTERS
from protocol.errors import LichenError, Reason, Refused
from runtime.web import assets as static
from runtime.web.assets import Assets
from runtime.web.pages import Pages
from runtime.web.security import Guarded

log = structlog.get_logger(__name__)
_OPENAPI: Final = f"{PREFIX}/openapi.json"
_STATUS: Final = {Reason.TOO_LARGE: 413, Reason.FULL: 503, Reason.REVOKED: 403, Reason.UNKNOWN_DEVICE: 404}


class Console:
    """The console as ``asgi``.

    Args:
        access: decides who views.
        parts: pages and operations.
        hosts: names under which a browser may reach it.
        given: further names of every template.
    """

    def __init__(
        self,
        access: Access,
        parts: Sequence[ConsolePart],
        hosts: Iterable[str],
        *,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._parts = parts
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
        self.asgi: ASGIApp = Guarded(_SignedIn(app, access, self._render), hosts)

    def _render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
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

        shown = {"path": request.url.path, "viewer": viewer, "navigation": links, "controls": controls}
        return self._pages.answer(template, status, **shown, **values)

    async def _openapi(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        return JSONResponse(self._document)

    def _failed(self, request: Request, status: int, words: str) -> Response:
        if request.url.path.startswith(PREFIX):
            return JSONResponse(Trouble(error=words).model_dump(), status)
        return self._render(request, "trouble.html", status=status, words=words)

    async def _on_trouble(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            return self._failed(request, _STATUS.get(error.reason, 400), error.detail)
        return self._failed(request, 503, str(error))

    async def _on_http(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        words = {404: "there is no such page", 405: "this page does not take that method"}
        detail = error.detail if isinstance(error, HTTPException) else ""
        return self._failed(request, status, words.get(status, detail))

    async def _on_fault(self, request: Request, error: Exception) -> Response:
        """An internal error: details are logged, and not shown."""
        log.error("internal_error", path=request.url.path[:128], error=repr(error)[:1000])
        return self._failed(request, 500, "an internal error; the log of lichen console has its details")


class _SignedIn:
    """Lets a request pass with its viewer; a page leads others to the sign-in, the API answers 401."""

    def __init__(self, app: ASGIApp, access: Access, render: Callable[..., Response]) -> None:
        self._app = app
        self._access = access
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        viewer = await self._access.who(request)
        scope.setdefault("state", {}).update(viewer=viewer, render=self._render)
        if viewer is None and not self._open(scope):
            await _turned_away(request, self._access.sign_in)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        path = scope["path"]
        if path.startswith(static.PREFIX + "/"):
            return True
        return any(route.matches(scope)[0].value > 0 for route in self._access.routes)


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
        viewer_of(request, one.role)
        found = await one.handle(request)
        if not isinstance(found, BaseModel):
            return found
        return Response(found.model_dump_json(), media_type="application/json")

    return answer
