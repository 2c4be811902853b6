"""The page over HTTP: who gets in, what a browser may send, what it hears when the agent is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from edge_agent.page.access import PageAccess
from edge_agent.page.app import COOKIE, CSRF_HEADER, DevicePage
from edge_agent.page.idle import IdleTimer
from runtime.clock import SystemClock
from runtime.process.daemon import Finished
from tests.support.clock import ManualClock
from tests.unit.edge_agent.labels.test_label_service import Device, device, samples


@dataclass
class Browser:
    """Calls in threads: the agent answers on the test's event loop."""

    client: TestClient
    access: PageAccess
    csrf: str = ""

    async def get(self, path: str, **more: Any) -> Any:
        return await asyncio.to_thread(self.client.get, path, **more)

    async def ask(self, csrf: str | None = None, **request: Any) -> Any:
        headers = {CSRF_HEADER: self.csrf if csrf is None else csrf}
        return await asyncio.to_thread(self.client.post, "/api/ask", json=request, headers=headers)

    async def enter(self) -> None:
        answer = await self.get(f"/enter?token={self.access.new_token()}")
        assert answer.status_code == 303
        page = (await self.get("/")).text
        self.csrf = page.partition('name="csrf" content="')[2].partition('"')[0]


def browser(folder: Path, socket: Path) -> Browser:
    access = PageAccess(folder / "page", SystemClock())
    page = DevicePage(socket, "barn <1>", access, ["localhost"], IdleTimer(None, SystemClock()))
    return Browser(TestClient(page.asgi, base_url="http://localhost", follow_redirects=False), access)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Browser, Device]]:
    async with device(folder) as one:
        found = browser(folder, one.socket)
        await found.enter()
        yield found, one


def window_count(one: Device) -> int:
    return one.collector.workspace.store.snapshot().labelled


@pytest.mark.parametrize("cookie", [None, "", "forged", f"{2**40}.00.{'0' * 64}", "a.b.c", "é"])
@pytest.mark.parametrize("path", ["/", "/live"])
async def test_without_a_session_there_is_nothing(tmp_path: Path, path: str, cookie: str | None) -> None:
    one = browser(tmp_path, tmp_path / "none")
    headers = {} if cookie is None else {"cookie": f"{COOKIE}={cookie}".encode()}
    answer = await one.get(path, headers=headers)
    assert answer.status_code == 403
    assert "lichen agent page --link" in answer.text
    assert (await one.ask(do="windows")).status_code == 403


async def test_a_link_opens_the_page_once_and_a_preview_does_not_use_it_up(tmp_path: Path) -> None:
    one = browser(tmp_path, tmp_path / "none")
    link = f"/enter?token={one.access.new_token()}"
    assert (await asyncio.to_thread(one.client.head, link)).status_code == 200
    answer = await one.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    page = await one.get("/")
    assert page.status_code == 200
    assert "barn &lt;1&gt;" in page.text, "names are escaped"
    one.client.cookies.clear()
    assert (await one.get(link)).status_code == 403
    assert (await one.get("/enter")).status_code == 403
    assert (await one.get(f"/enter?token={'x' * 9000}")).status_code == 403


async def test_one_request_labels_and_one_takes_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, one):
        one.add(3)
        (first, *_) = (await page.ask(do="propose", count=3)).json()["ok"]["windows"]
        given = await page.ask(do="label", window=first["window"], label="fast", by="page")
        assert given.json()["ok"]["label"] == "fast"
        assert window_count(one) == 1
        undone = await page.ask(do="undo", window=first["window"])
        assert undone.json()["ok"]["before"] == "fast"
        assert window_count(one) == 0


async def test_a_forged_form_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, one):
        one.add(1)
        (first,) = (await page.ask(do="windows")).json()["ok"]["windows"]
        asked = {"do": "label", "window": first["window"], "label": "fast"}
        stranger = page.access.csrf("another session")
        for token in ("", "x", stranger):
            answer = await page.ask(token, **asked)
            assert answer.status_code == 403
            assert "load it again" in answer.json()["error"]
        bare = await asyncio.to_thread(page.client.post, "/api/ask", json=asked)
        assert bare.status_code == 403
        assert (await page.get("/api/ask")).status_code == 405
        assert window_count(one) == 0


async def test_bad_input_is_refused_in_words(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, one):
        one.add(1)
        for request, words in (
            ({"do": "label", "window": "1-0123456789abcdef", "label": "fast"}, "not stored any more"),
            ({"do": "label", "window": "x", "label": "no such"}, "its classes are"),
            ({"do": "explode"}, "the request is wrong"),
            ({"do": "live"}, "is at /live"),
        ):
            answer = await page.ask(**request)
            assert answer.status_code == 409
            assert words in answer.json()["error"]
        large = await page.ask(do="label", window="x", label="y" * 3000)
        assert large.status_code == 413


async def test_an_agent_that_is_away_is_named_and_comes_back(tmp_path: Path) -> None:
    page = browser(tmp_path, tmp_path / "agent.sock")
    await page.enter()
    answer = await page.ask(do="windows")
    assert answer.status_code == 503
    assert "does it run" in answer.json()["error"]
    stream = await page.get("/live")
    assert "event: trouble" in stream.text
    assert "does it run" in stream.text
    async with opened(tmp_path) as (again, _):
        assert (await again.ask(do="windows")).status_code == 200


async def test_the_live_signal_is_a_stream_of_events(tmp_path: Path) -> None:
    async with device(tmp_path) as one:
        page = DevicePage(
            one.socket, "d", PageAccess(tmp_path / "p", SystemClock()), [], IdleTimer(None, SystemClock())
        )
        messages = page._messages()
        assert await anext(messages) == "retry: 2000\n\n"
        first = await anext(messages)
        assert first.startswith("event: now\ndata: {")
        one.collector.live.feed(samples(20))
        data = json.loads((await anext(messages)).partition("data: ")[2])
        assert len(data["samples"]["acc"]["t"]) == 20
        await messages.aclose()


async def test_every_answer_keeps_the_page_to_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, _):
        for answer in (await page.get("/"), await page.get("/nothing"), await page.ask(do="explode")):
            assert answer.headers["content-security-policy"].startswith("default-src 'self'")
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
        elsewhere = await page.get("/", headers={"host": "evil.example"})
        assert elsewhere.status_code == 421
        text = (await page.get("/")).text
        assert "<script>" not in text
        assert " style=" not in text
        assert " onclick" not in text


async def test_the_page_ends_when_nobody_looks_and_not_before() -> None:
    clock = ManualClock()
    idle = IdleTimer(100.0, clock)
    release = asyncio.Event()

    async def stream(_scope: Any, _receive: Any, _send: Any) -> None:
        await release.wait()

    ends = asyncio.ensure_future(idle.run())
    looking = asyncio.ensure_future(idle.watching(stream)({}, None, None))
    await clock.advance(300)
    assert not ends.done(), "an open stream is somebody who looks"
    release.set()
    await looking
    await clock.advance(75)
    assert not ends.done()
    await clock.advance(50)
    with pytest.raises(Finished, match="nobody has looked for 100 s"):
        await ends
