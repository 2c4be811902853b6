"""The API's answer about the caller's own session."""

from pydantic import BaseModel
from starlette.requests import Request

from console.ports import ConsolePart, Endpoint, viewer_of


class SessionAnswer(BaseModel):
    """Who is signed in. ``token``: for the header ``x-csrf-token`` of changing calls; empty: no session."""

    name: str
    role: str
    how: str
    token: str


async def _session(request: Request) -> SessionAnswer:
    viewer = viewer_of(request)
    return SessionAnswer(name=viewer.name, role=viewer.role.words, how=viewer.how, token=viewer.token)


def session_part() -> ConsolePart:
    """For the application."""
    return ConsolePart(endpoints=[Endpoint("GET", "/session", "Who is signed in", SessionAnswer, _session)])
