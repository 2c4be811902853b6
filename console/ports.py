"""What the parts of the console know of each other: who views, what a part adds, what an endpoint is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol
from urllib.parse import quote

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from protocol.errors import Reason, Refused

TASKS: Final = "/tasks"
_STATUS: Final = {
    Reason.DUPLICATE: 409,
    Reason.FULL: 503,
    Reason.REVOKED: 403,
    Reason.TOO_LARGE: 413,
    Reason.UNKNOWN_DEVICE: 404,
    Reason.WRONG_ROUND: 409,
}


class Role(IntEnum):
    """What a person may do; a higher role may do all that a lower one may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def words(self) -> str:
        """Its name."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who is signed in.

    Attributes:
        name: what an audit log writes.
        role: what they may do.
        how: how they signed in.
        token: what a form of theirs carries as ``csrf``, and a changing call of the API as the header
            ``x-csrf-token``; empty: they change nothing.
    """

    name: str
    role: Role
    how: str = ""
    token: str = ""


class Access(Protocol):
    """Decides who views: asked before every request but those of its own routes and of static files."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Pages that nobody needs to be signed in for, such as the sign-in."""

    @property
    def sign_in(self) -> str:
        """The path of the sign-in, to which a page sends a person who is not signed in."""

    async def who(self, request: HTTPConnection) -> Viewer | None:
        """Who sent the request; None: nobody who is signed in."""


@dataclass(frozen=True)
class Endpoint:
    """One operation of the API: a route, and its entry in the OpenAPI document.

    Attributes:
        path: below ``/api/v1``, as ``/devices/{device}``.
        summary: one line.
        answer: the model of its answer.
        handle: makes the answer; ``Refused`` gives 400 and words.
        role: the least role that may call it.
        query: the model of its query parameters, each with a default.
        body: the model of its JSON body.
    """

    method: str
    path: str
    summary: str
    answer: type[BaseModel]
    handle: Callable[[Request], Awaitable[BaseModel | Response]]
    role: Role = Role.VIEWER
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None


@dataclass(frozen=True)
class NavigationLink:
    """An entry of the navigation.

    Attributes:
        path: of its page; of a page of a task, below the task's address.
        words: on it.
        role: the least role that sees it.
        of_fleet: the page is the same for all tasks.
    """

    path: str
    words: str
    role: Role = Role.VIEWER
    of_fleet: bool = False


Controls = Callable[[Request, str, Mapping[str, Any]], str]
"""Forms and buttons for a place of a page, as HTML: ``(request, place, subject)``. Places: ``device``,
``log`` and ``refusals`` (subject ``{"device": NAME}``), ``round`` (``{"round": N}``), ``rollout``
(``{"rollout": N, "phase": WORD}``), ``enrolment`` (``{"device": NAME, "status": WORD}``), ``rounds``
(``{"ordered": WORD}``), ``fleet``, ``rollouts`` (``{}``). Further keys: ``status`` and ``quarantined`` of a
``device``, ``last`` (number) of ``rollouts``."""


@dataclass(frozen=True)
class ConsolePart:
    """What a part adds to the application.

    Attributes:
        routes: its pages.
        endpoints: its operations of the API.
        navigation: its entries.
        templates: packages with its templates (``pages/*.html``).
        assets: packages with its files (``assets/*``).
        controls: gives HTML for places in other parts' pages; escaped by the part itself.
    """

    routes: Sequence[BaseRoute] = ()
    endpoints: Sequence[Endpoint] = ()
    navigation: Sequence[NavigationLink] = ()
    templates: Sequence[str] = ()
    assets: Sequence[str] = ()
    controls: Controls | None = field(default=None)


def status_of(error: Exception) -> int:
    """The HTTP status for an error that says what is wrong."""
    return _STATUS.get(error.reason, 400) if isinstance(error, Refused) else 503


def viewer_of(request: HTTPConnection, least: Role = Role.VIEWER) -> Viewer:
    """Who sent a request that :class:`Access` let pass.

    Raises:
        HTTPException: 403: the role is lower than the least one.
    """
    viewer: Viewer = request.state.viewer
    if viewer.role < least:
        words = f"this is for the role {least.words}; {viewer.name} has the role {viewer.role.words}"
        raise HTTPException(403, words)
    return viewer


def asks_for_region(request: HTTPConnection) -> bool:
    """Whether a page asks for its live region alone, and not for what is around it."""
    return request.headers.get("hx-target") == "live"


def base_of(request: HTTPConnection) -> str:
    """The address below which the task of a request has its pages: ``/tasks/NAME``; empty: the main task."""
    name = task_of(request)
    return "" if name is None else f"{TASKS}/{quote(name, safe='')}"


def task_of(request: HTTPConnection) -> str | None:
    """The name of the task in the address of a request; None: the main task, or a page of the fleet."""
    name: str | None = request.path_params.get("task")
    return name


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page of the console from a template that extends ``console.html``."""
    answer: Callable[..., Response] = request.state.render
    return answer(request, template, status=status, **values)
