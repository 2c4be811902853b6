"""A real console over a real coordinator's tables, in a thread, and a client that sends anything."""

import asyncio
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from console.serve import RunningConsole, ServeOptions
from coordinator.actions import people
from coordinator.audit.chain import Person
from coordinator.config.coordinator import CoordinatorSettings

FORM = "application/x-www-form-urlencoded"
ADMIN = Person("root", "admin", "command line")


def settings_of(folder: Path, **values: object) -> CoordinatorSettings:
    given = {"fleet": "test", "state_dir": folder / "state", "task": folder / "task.toml"}
    return CoordinatorSettings.model_validate(given | values)


def with_tables(folder: Path, **values: object) -> CoordinatorSettings:
    """Settings of a coordinator that has run."""
    return made_tables(settings_of(folder, **values))


def made_tables(settings: CoordinatorSettings) -> CoordinatorSettings:
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with settings.location.database():
        pass
    return settings


@contextmanager
def running(settings: CoordinatorSettings, **options: Any) -> Iterator[RunningConsole]:
    """A console that listens on a free port until the end."""
    options = {"listen": "127.0.0.1:0"} | options
    console = RunningConsole(settings, ServeOptions(**options))
    began, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        services = [asyncio.ensure_future(run()) for run in console.services.values()]
        loop.call_soon(began.set)
        await stop.wait()
        for one in services:
            one.cancel()
        await asyncio.wait(services)

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    until = time.monotonic() + 30
    while not console.watch.picture.revisions and time.monotonic() < until:
        time.sleep(0.02)
    try:
        yield console
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        console.close()


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str
    cookies: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def field(self, name: str) -> str:
        """The value of a hidden field of the page."""
        found = re.search(rf'name="{name}" value="([^"]*)"', self.body)
        assert found, self.body
        return found[1]


class Client:
    """Sends requests with the cookies it was given; without a browser's headers unless it is told to."""

    def __init__(self, url: str, tls: Any = None) -> None:
        self._at = urlsplit(url)
        self._tls = tls
        self.jar: dict[str, str] = {}

    def send(self, method: str, path: str, body: bytes | str | None = None, /, **headers: str) -> Answer:
        """Headers by their names with ``_`` for ``-``."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.jar:
            given.setdefault("cookie", "; ".join(f"{name}={value}" for name, value in self.jar.items()))
        host, port = self._at.hostname or "", self._at.port or 0
        line = (
            http.client.HTTPConnection(host, port, timeout=30)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=30, context=self._tls)
        )
        try:
            line.request(method, path, body, given)
            got = line.getresponse()
            text = got.read().decode()
        finally:
            line.close()
        cookies = got.headers.get_all("set-cookie") or []
        for one in cookies:
            name, _, value = one.partition(";")[0].partition("=")
            self.jar[name] = value
            if "max-age=0" in one.lower():
                del self.jar[name]
        return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, text, cookies)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def form(self, path: str, /, fields: dict[str, str], **headers: str) -> Answer:
        return self.send("POST", path, urlencode(fields), content_type=FORM, **headers)

    def post(self, path: str, value: Any, /, **headers: str) -> Answer:
        """A call of the API, with the token of the session."""
        token = {"x_csrf_token": self.token} if self.jar and "x_csrf_token" not in headers else {}
        return self.send("POST", path, json.dumps(value), content_type="application/json", **token, **headers)

    @property
    def token(self) -> str:
        return str(self.get("/api/v1/session").json["token"])


def signed_in(console: RunningConsole, settings: CoordinatorSettings, role: str, name: str = "") -> Client:
    """A client with a session of its own, by a one-time link."""
    token, _ = people.link(settings, ADMIN, name or f"a-{role}", role)  # type: ignore[arg-type]
    client = Client(console.url)
    assert client.form("/sign-in", {"token": token}).status == 303
    return client
