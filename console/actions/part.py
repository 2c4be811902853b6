"""The actions as endpoints, and as forms for the places of pages."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from markupsafe import Markup
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.access.forgery import require_field
from console.access.listing import PeopleAnswer, read_people
from console.access.sign_in import own_path
from console.actions import devices, people, rollouts, rounds
from console.actions.definitions import FORMS, ActionCall, ActionForm, ConsoleAction
from console.ports import (
    TASKS,
    ConsolePart,
    Endpoint,
    NavigationLink,
    Role,
    Viewer,
    base_of,
    render,
    status_of,
    task_of,
    viewer_of,
)
from coordinator.actions.answers import ActionAnswer, DeviceInvited, LinkMade
from coordinator.audit.chain import Person
from coordinator.config.coordinator import CoordinatorSettings
from protocol.base import first_fault, name_trouble
from protocol.errors import LichenError, Reason, Refused
from runtime.web.assets import Assets
from runtime.web.pages import Pages
from runtime.web.security import read_form, read_json

log = structlog.get_logger(__name__)
ACTIONS: Final[tuple[ConsoleAction, ...]] = (
    *rollouts.ACTIONS,
    *rounds.ACTIONS,
    *devices.ACTIONS,
    *people.ACTIONS,
)
_AT_ONCE: Final = 2
"""Actions at a time: one may wait for the broker, and looking goes on meanwhile."""
_AT: Final = TASKS + "/{task}"
_OWN_FIELDS: Final = frozenset({"csrf", "back"})


class ConsoleActions:
    """Carries actions out, and gives their forms.

    Args:
        settings_of: the settings of a task by its name, None: of the main one; raises ``HTTPException`` 404.
    """

    def __init__(self, settings_of: Callable[[str | None], CoordinatorSettings]) -> None:
        self._settings_of = settings_of
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._pages = Pages([__package__], Assets())

    def part(self) -> ConsolePart:
        """For the application."""
        forms = [Route(FORMS + one.path, self._from_form(one), methods=["POST"]) for one in ACTIONS]
        of_tasks = [one for one in ACTIONS if not one.of_fleet]
        forms += [Route(_AT + FORMS + one.path, self._from_form(one), methods=["POST"]) for one in of_tasks]
        listing = Endpoint(
            "GET", "/people", "People, links, sessions", PeopleAnswer, self._people, Role.ADMIN
        )
        return ConsolePart(
            routes=[*forms, Route("/people", self._people_page, methods=["GET"])],
            endpoints=[
                listing,
                *(self._endpoint(one, one.path) for one in ACTIONS),
                *(self._endpoint(one, _AT + one.path) for one in of_tasks),
            ],
            navigation=[NavigationLink("/people", "People", Role.ADMIN, of_fleet=True)],
            templates=[__package__],
            controls=self.controls,
        )

    def controls(self, request: Request, place: str, subject: Mapping[str, Any]) -> str:
        """See :data:`console.ports.Controls`."""
        viewer: Viewer = request.state.viewer
        return self._forms(request, viewer, self._of_place(place, subject))

    def _of_place(self, place: str, subject: Mapping[str, Any]) -> Sequence[ActionForm]:
        forms: dict[str, Callable[[], list[ActionForm]]] = {
            "device": lambda: devices.forms_of_device(subject),
            "enrolment": lambda: devices.forms_of_enrolment(subject),
            "fleet": devices.forms_of_fleet,
            "log": lambda: devices.forms_of_log(subject),
            "refusals": lambda: devices.forms_of_refusals(subject),
            "rollout": lambda: rollouts.forms_of_rollout(subject),
            "rollouts": lambda: rollouts.forms_of_rollouts(subject),
            "rounds": lambda: rounds.forms_of_rounds(subject),
        }
        return forms[place]() if place in forms else []

    def _forms(self, request: Request, viewer: Viewer, forms: Sequence[ActionForm]) -> str:
        """The forms that this viewer may use, as HTML."""
        allowed = [one for one in forms if viewer.token and viewer.role >= one.action.role]
        if not allowed:
            return ""
        back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        text = self._pages.html(
            "forms.html", forms=allowed, token=viewer.token, back=back, base=base_of(request)
        )
        return Markup(text)  # noqa: S704 - the template escapes every value

    async def _perform(self, action: ConsoleAction, request: Request, body: BaseModel) -> ActionAnswer:
        viewer = viewer_of(request, action.role)
        path = {key: value for key, value in request.path_params.items() if key != "task"}
        for key, value in path.items():
            if isinstance(value, str) and (words := name_trouble(value)):
                raise Refused(Reason.MALFORMED, f"{key}: {words}")
        address = request.headers.get("origin") or f"{request.url.scheme}://{request.headers['host']}"
        person = Person(viewer.name, viewer.role.words, viewer.how)
        task = task_of(request)
        call = ActionCall(self._settings_of(task), person, path, body, address)
        async with self._turn:
            done = await asyncio.shield(asyncio.to_thread(action.run, call))
        log.info("acted", action=action.name, who=viewer.name, task=task)
        return done

    def _endpoint(self, action: ConsoleAction, path: str) -> Endpoint:
        async def handle(request: Request) -> BaseModel:
            is_empty = request.headers.get("content-length", "0") == "0"
            value = (
                {} if is_empty and "transfer-encoding" not in request.headers else await read_json(request)
            )
            return await self._perform(action, request, _checked(action.body, value))

        return Endpoint("POST", path, action.summary, action.answer, handle, action.role, body=action.body)

    def _from_form(self, action: ConsoleAction) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            form: dict[str, str] = {}
            try:
                viewer = viewer_of(request, action.role)
                form = await read_form(request)
                require_field(form, viewer)
                given = {key: value for key, value in form.items() if key not in _OWN_FIELDS and value}
                done = await self._perform(action, request, _checked(action.body, given))
            except HTTPException as error:
                return _acted(request, form, error.status_code, error.detail)
            except LichenError as error:
                words = error.words if isinstance(error, Refused) else str(error)
                return _acted(request, form, status_of(error), words)
            return _acted(request, form, 200, done.words, _secrets(done))

        return answer

    async def _people(self, request: Request) -> PeopleAnswer:  # noqa: ARG002 - a route is called with its request
        return await asyncio.to_thread(read_people, self._settings_of(None).location)

    async def _people_page(self, request: Request) -> Response:
        viewer = viewer_of(request, Role.ADMIN)
        found = await asyncio.to_thread(read_people, self._settings_of(None).location)
        return render(
            request,
            "people.html",
            forms=lambda forms: self._forms(request, viewer, forms),
            head=people.forms_of_people(),
            people=[(one, people.forms_of_person(one)) for one in found.people],
            sessions=[(one, people.form_of_session(one)) for one in found.sessions],
            links=found.links,
        )


def _checked(model: type[BaseModel], value: Any) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Refused(Reason.MALFORMED, first_fault(error)) from None


def _secrets(done: ActionAnswer) -> tuple[str, ...]:
    """What the answer shows once, and nothing stores."""
    if isinstance(done, DeviceInvited):
        return (done.invite,)
    return (done.url,) if isinstance(done, LinkMade) else ()


def _acted(
    request: Request, form: Mapping[str, str], status: int, words: str, secrets: Sequence[str] = ()
) -> Response:
    template = "answer.html" if "hx-request" in request.headers else "acted.html"
    back, good = own_path(form.get("back", "")), status == 200  # noqa: PLR2004 - HTTP
    return render(request, template, status=status, words=words, good=good, secrets=secrets, back=back)
