"""The addresses ``/tasks/NAME/...``: those of the main task, for each further one."""

from dataclasses import replace
from typing import Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import TASKS, ConsolePart, Endpoint, render
from console.tasks.open_sites import OpenSites
from console.tasks.task_site import Page, TaskSite

_AT: Final = TASKS + "/{task}"


def part_of_tasks(main: TaskSite, sites: OpenSites) -> ConsolePart:
    """The pages and operations of all further tasks: each has those of the main one, at its own address."""

    def page(path: str) -> Page:
        async def answer(request: Request) -> Response:
            try:
                site = await sites.get(request.path_params["task"])
            except HTTPException as error:
                # A region that is already shown is replaced only by an answer without an error.
                status = 200 if "hx-request" in request.headers else error.status_code
                return render(request, "task_absent.html", status=status, words=error.detail)
            return await site.pages[path](request)

        return answer

    def operation(one: Endpoint) -> Endpoint:
        async def handle(request: Request) -> BaseModel | Response:
            site = await sites.get(request.path_params["task"])
            return await site.operations[one.method, one.path].handle(request)

        return replace(one, path=_AT + one.path, summary=f"{one.summary}; of a further task", handle=handle)

    routes = [Route((_AT + path).rstrip("/"), page(path), methods=["GET"]) for path in main.pages]
    return ConsolePart(routes=routes, endpoints=[operation(one) for one in main.operations.values()])
