"""Headers of every answer, names of the server, and bounds of forms."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from protocol.errors import Refused
from runtime.web.security import Guarded, read_form


async def _hello(request: Request) -> Response:  # noqa: ARG001 - a route is called with its request
    return PlainTextResponse("hello")


async def _form(request: Request) -> Response:
    try:
        return PlainTextResponse(repr(await read_form(request, 200)))
    except Refused as error:
        return PlainTextResponse(str(error), 400)


APP = Starlette(routes=[Route("/", _hello), Route("/form", _form, methods=["POST"])])


def client(host: str = "127.0.0.1") -> TestClient:
    return TestClient(Guarded(APP, ["127.0.0.1", "localhost", "::1"]), base_url=f"http://{host}:8480")


@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_web_every_answer_keeps_to_itself(path: str) -> None:
    headers = client().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("LOCALHOST", 200), ("[::1]", 200), ("evil.example", 421), ("127.0.0.1.evil", 421)],
)
def test_web_a_name_that_leads_here_is_not_enough(host: str, status: int) -> None:
    answer = client().get("/", headers={"host": f"{host}:8480"})
    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


def test_web_a_form_is_read() -> None:
    assert client().post("/form", data={"a": "1", "b": "ö"}).text == "{'a': '1', 'b': 'ö'}"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"a=" + b"x" * 300, "application/x-www-form-urlencoded"),
        (b"a=1&a=2", "application/x-www-form-urlencoded"),
        (b"a=%ff", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"a=1", ""),
    ],
)
def test_web_what_is_no_form_is_refused(body: bytes, kind: str) -> None:
    answer = client().post("/form", content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.text.startswith(("malformed", "too_large"))
