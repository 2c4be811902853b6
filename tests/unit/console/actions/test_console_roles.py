"""Who may call what: every endpoint, form and page of a real console, as nobody and in each role."""

import json
import re
from urllib.parse import quote

import pytest
from starlette.routing import Route

from console.actions.definitions import FORMS
from console.actions.part import ACTIONS
from coordinator.audit.log import read_log
from coordinator.identity.setup import init
from tests.support.console.consoles import Client, made_tables, running, signed_in, with_tables

ROLES = ("viewer", "operator", "admin")
# The least role, names in the path, a body, and the answer to who may, where a coordinator has just begun.
OF_FLEET = {
    "GET /tasks": ("viewer", {}, None, 200),
    "GET /session": ("viewer", {}, None, 200),
    "GET /people": ("admin", {}, None, 200),
    "GET /enrolment": ("viewer", {}, None, 200),
    "GET /audit": ("viewer", {}, None, 200),
    "GET /audit/check": ("viewer", {}, None, 200),
    "POST /devices/{device}/approve": ("admin", {"device": "pi"}, {}, 404),
    "POST /devices/{device}/revoke": ("admin", {"device": "pi"}, {}, 404),
    "POST /invites": ("admin", {}, {}, 200),
    "POST /links": ("admin", {}, {"name": "ann"}, 200),
    "POST /people/{person}/role": ("admin", {"person": "ann"}, {"role": "viewer"}, 404),
    "POST /people/{person}/revoke": ("admin", {"person": "ann"}, {}, 404),
    "POST /people/{person}/sign-out": ("admin", {"person": "nobody"}, {}, 200),
}
OF_TASK = {
    "GET /status": ("viewer", {}, None, 200),
    "GET /devices": ("viewer", {}, None, 200),
    "GET /devices/{device}": ("viewer", {"device": "99"}, None, 404),
    "GET /devices/{device}/logs": ("operator", {"device": "99"}, None, 404),
    "GET /refusals": ("viewer", {}, None, 200),
    "GET /quarantine": ("viewer", {}, None, 200),
    "GET /rounds": ("viewer", {}, None, 200),
    "GET /rounds/{round:int}": ("viewer", {"round": "99"}, None, 404),
    "GET /rounds/{round:int}/devices": ("viewer", {"round": "99"}, None, 404),
    "GET /versions": ("viewer", {}, None, 200),
    "GET /versions/{version:int}": ("viewer", {"version": "99"}, None, 404),
    "GET /versions/{version:int}/evaluation": ("viewer", {"version": "99"}, None, 404),
    "GET /rollouts": ("viewer", {}, None, 200),
    "GET /rollouts/{rollout:int}": ("viewer", {"rollout": "99"}, None, 404),
    "GET /rollouts/{rollout:int}/devices": ("viewer", {"rollout": "99"}, None, 404),
    "POST /rollouts": ("operator", {}, {}, 503),
    "POST /rollouts/{rollout:int}/pause": ("operator", {"rollout": "1"}, {"phase": "open"}, 409),
    "POST /rollouts/{rollout:int}/resume": ("operator", {"rollout": "1"}, {}, 409),
    "POST /rollouts/{rollout:int}/abort": ("operator", {"rollout": "1"}, {}, 409),
    "POST /rounds/hold": ("operator", {}, {"seen": "ended"}, 409),
    "POST /rounds/resume": ("operator", {}, {}, 409),
    "POST /rounds/end": ("operator", {}, {"seen": "held"}, 409),
    "POST /devices/{device}/ask-state": ("operator", {"device": "pi"}, {}, 404),
    "POST /devices/{device}/ask-logs": ("operator", {"device": "pi"}, {}, 404),
    "POST /devices/{device}/release": ("operator", {"device": "pi"}, {}, 409),
    "POST /devices/{device}/forget": ("admin", {"device": "pi"}, {}, 404),
}
# Each task has the same operations and pages at an address of its own.
AT = "/tasks/{task}"
ENDPOINTS = (
    OF_FLEET
    | OF_TASK
    | {
        name.replace(" ", f" {AT}"): (role, {"task": "sound", **names}, body, answer)
        for name, (role, names, body, answer) in OF_TASK.items()
    }
)
FLEET_PAGES = {
    "/tasks": "viewer",
    "/events/tasks": "viewer",
    "/people": "admin",
    "/enrolment": "viewer",
    "/audit": "viewer",
    "/audit/check": "viewer",
}
TASK_PAGES = {
    "/": "viewer",
    "/events": "viewer",
    "/devices": "viewer",
    "/devices/{device}": "viewer",
    "/refusals": "viewer",
    "/rounds": "viewer",
    "/rounds/{round:int}": "viewer",
    "/versions": "viewer",
    "/versions/{version:int}": "viewer",
    "/versions/{version:int}/evaluation": "viewer",
    "/versions/{version:int}/bundles/{digest}": "viewer",
    "/rollouts": "viewer",
    "/rollouts/{rollout:int}": "viewer",
}
PAGES = FLEET_PAGES | TASK_PAGES | {(AT + path).rstrip("/"): role for path, role in TASK_PAGES.items()}
FORMS_OF = {FORMS + one.path: one for one in ACTIONS} | {
    AT + FORMS + one.path: one for one in ACTIONS if not one.of_fleet
}


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    settings = with_tables(folder, tasks=[{"name": "sound", "task": folder / "sound.toml"}])
    made_tables(settings.for_task("sound"))
    init(settings, ["localhost"])
    with running(settings, closed=True) as running_console:
        clients = {role: signed_in(running_console, settings, role) for role in ROLES}
        yield running_console, settings, {"nobody": Client(running_console.url), **clients}


def named(one) -> str:
    return f"{one.method} {one.path}"


def test_console_every_endpoint_and_page_is_in_the_table(console):
    parts = console[0].parts
    endpoints = {named(one) for part in parts for one in part.endpoints}
    assert endpoints == set(ENDPOINTS), "name the role of a new endpoint here"
    routes = [route for part in parts for route in part.routes]
    assert all(isinstance(one, Route) for one in routes)
    pages = {one.path for one in routes if "GET" in one.methods}
    assert pages == set(PAGES), "name the role of a new page here"
    forms = {one.path for one in routes if "POST" in one.methods}
    assert forms == set(FORMS_OF)
    assert {f"POST {path.replace(FORMS, '')}" for path in FORMS_OF} == {
        name for name in ENDPOINTS if name.startswith("POST")
    }


def rows(settings) -> int:
    return len(read_log(settings.location))


def at(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: values[found[1]], path)


@pytest.mark.parametrize("who", ["nobody", *ROLES])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_console_an_endpoint_is_for_its_role_and_above(console, endpoint, who):
    _, settings, clients = console
    least, names, body, answer = ENDPOINTS[endpoint]
    method, path = endpoint.split()
    before = rows(settings)
    token = {} if who == "nobody" else {"x_csrf_token": clients[who].token}
    sent = None if body is None else json.dumps(body)
    found = clients[who].send(
        method, "/api/v1" + at(path, names), sent, content_type="application/json", **token
    )
    if who == "nobody":
        assert (found.status, found.json["error"]) == (401, "sign in first")
    elif ROLES.index(who) < ROLES.index(least):
        assert found.status == 403
        assert found.json["error"] == f"this is for the role {least}; a-{who} has the role {who}"
    else:
        assert found.status == answer, found.body
        assert method == "GET" or rows(settings) == before + 2, "an action is two rows"
        if method == "POST":
            assert {one.task for one in read_log(settings.location, last=2)} == {names.get("task")}
        return
    assert rows(settings) == before


@pytest.mark.parametrize("who", ["nobody", *ROLES])
@pytest.mark.parametrize("path", FORMS_OF)
def test_console_a_form_is_for_its_role_and_above(console, path, who):
    _, settings, clients = console
    least, names, body, answer = ENDPOINTS[f"POST {path.replace(FORMS, '')}"]
    before = rows(settings)
    fields = {key: str(value) for key, value in (body or {}).items()}
    token = {} if who == "nobody" else {"csrf": clients[who].token}
    for headers in ({}, {"hx_request": "true"}):
        found = clients[who].form(at(path, names), fields | token, **headers)
        if who == "nobody":
            assert found.status == (401 if headers else 303)
            assert found.headers.get("hx-redirect" if headers else "location", "").startswith("/sign-in")
        elif ROLES.index(who) < ROLES.index(least):
            assert found.status == 403
            assert f"this is for the role {least}" in found.body
        else:
            assert found.status == answer, found.body
            assert ("<!doctype html>" in found.body) == (not headers), "without JavaScript it is a whole page"
    allowed = who != "nobody" and ROLES.index(who) >= ROLES.index(least)
    assert rows(settings) == before + (4 if allowed else 0)


@pytest.mark.parametrize("path", FORMS_OF)
@pytest.mark.parametrize("forgery", ["no token", "another session's", "another site's"])
def test_console_a_forged_form_does_nothing(console, path, forgery):
    _, settings, clients = console
    _, names, body, _ = ENDPOINTS[f"POST {path.replace(FORMS, '')}"]
    admin, before = clients["admin"], rows(settings)
    other = clients["operator"].token
    token = {"no token": "", "another session's": other, "another site's": admin.token}[forgery]
    headers = {"origin": "https://evil.example"} if forgery == "another site's" else {}
    form = at(path, names)
    fields = {key: str(value) for key, value in (body or {}).items()}
    by_form = admin.form(form, fields | ({"csrf": token} if token else {}), **headers)
    sent = {"x_csrf_token": token} if token else {}
    by_api = admin.send(
        "POST",
        f"/api/v1{form.replace(FORMS, '')}",
        json.dumps(body),
        content_type="application/json",
        **sent,
        **headers,
    )
    assert (by_form.status, by_api.status) == (403, 403)
    assert "nothing was done" in by_form.body
    assert "nothing was done" in by_api.json["error"]
    assert rows(settings) == before


@pytest.mark.parametrize("who", ["nobody", *ROLES])
@pytest.mark.parametrize("page", [one for one in PAGES if "/events" not in one])
def test_console_a_page_is_for_its_role_and_above(console, page, who):
    of_task = page.replace("{task}", "sound")
    path = re.sub(r"\{\w+(?::\w+)?\}", "99", of_task)
    found = console[2][who].get(path)
    if who == "nobody":
        assert (found.status, found.headers["location"]) == (303, f"/sign-in?next={path}")
    else:
        there = {"/audit/check": 303}.get(page, 200) if path == of_task else 404  # a part of the page /audit
        assert found.status == (there if ROLES.index(who) >= ROLES.index(PAGES[page]) else 403)


def test_console_forms_are_shown_to_who_may_use_them(console):
    clients = console[2]
    shown = {role: re.findall(r'action="(/act[^"]+)"', clients[role].get("/").body) for role in ROLES}
    assert shown == {"viewer": [], "operator": ["/act/rounds/hold", "/act/rounds/end"]} | {
        "admin": ["/act/rounds/hold", "/act/rounds/end"]
    }
    assert 'href="/people"' not in clients["operator"].get("/").body
    of_task = re.findall(r'action="(/[^"]*act/[^"]+)"', clients["operator"].get("/tasks/sound").body)
    assert of_task == ["/tasks/sound/act/rounds/hold", "/tasks/sound/act/rounds/end"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"why": "a", "why": "b"}', "a key twice"),
        ('{"why": NaN}', "NaN is no number"),
        ("[" * 30_000, "no JSON of ours"),
        ("{", "no JSON of ours"),
        ('{"unknown": 1}', "unknown"),
        ('{"why": "' + "x" * 300 + '"}', "why"),
        ('"text"', "dictionary"),
        (b'{"why": "\xff"}', "no JSON of ours"),
        ('{"why": "' + "x" * 70_000 + '"}', "a body beyond 65536 bytes"),
    ],
)
def test_console_a_bad_body_is_refused_in_words(console, body, words):
    _, settings, clients = console
    before = rows(settings)
    client = clients["operator"]
    found = client.send(
        "POST", "/api/v1/rounds/hold", body, content_type="application/json", x_csrf_token=client.token
    )
    assert found.status in {400, 413}
    assert words in found.json["error"]
    assert rows(settings) == before


@pytest.mark.parametrize("name", ["a b", "%2e%2e", "a" * 200, "%00", "person%2Bann", "ä"])
def test_console_a_name_in_a_path_is_a_name(console, name):
    _, settings, clients = console
    before = rows(settings)
    found = clients["admin"].post(f"/api/v1/devices/{quote(name, safe='%')}/approve", {})
    assert found.status in {400, 404}
    assert rows(settings) == before


def test_console_the_document_describes_every_endpoint(console):
    found = console[2]["viewer"].get("/api/v1/openapi.json").json
    described = {(method.upper(), path) for path, one in found["paths"].items() for method in one}
    assert described == {
        (name.split()[0], "/api/v1" + name.split()[1].replace(":int}", "}")) for name in ENDPOINTS
    }
    pause = found["paths"]["/api/v1/rollouts/{rollout}/pause"]["post"]
    assert pause["description"] == "For the role operator, and above."
    assert pause["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("SeenRollout")
    answer = pause["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(found["components"]["schemas"][answer]["properties"]) == {"rollout", "phase"}
