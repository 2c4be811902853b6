"""An installed Home Assistant as a process of its own (``home_assistant_core.py``)."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parent / "home_assistant_core.py")


@pytest.fixture
def python() -> str:
    found = os.environ.get("LICHEN_HOME_ASSISTANT")
    if not found:
        pytest.skip("SKIPPED LOUDLY: LICHEN_HOME_ASSISTANT names no interpreter that has Home Assistant")
    return found


class HomeAssistant:
    """A running Home Assistant, and what it says of our entities."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.entities: dict[str, dict[str, Any]] = {}

    async def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(await self._process.stdout.readline())
        if "id" in said:
            self.entities[said.pop("id")] = said
        return said

    async def until(
        self, true: Callable[[dict[str, dict[str, Any]]], object], again: Callable[[], None] = lambda: None
    ) -> None:
        """Wait; ``again`` is done each second: it listens to a new sensor's topic only after a while."""
        async with asyncio.timeout(60):
            while not true(self.entities):
                again()
                try:
                    await asyncio.wait_for(self.read(), 1.0)
                except TimeoutError:
                    continue

    async def call(self, domain: str, service: str, **data: str) -> None:
        """Call a service, as a press in its page does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([domain, service, data]).encode() + b"\n")
        await self._process.stdin.drain()

    async def end(self) -> dict[str, Any]:
        """End it; what it says last."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while "devices" not in (said := await self.read()):
            pass
        await self._process.wait()
        return said


async def started(python: str, port: int) -> HomeAssistant:
    """With its MQTT integration connected to the broker at this port."""
    pipe = asyncio.subprocess.PIPE
    home = HomeAssistant(
        await asyncio.create_subprocess_exec(python, SCRIPT, "live", str(port), stdin=pipe, stdout=pipe)
    )
    assert (await home.read())["mqtt"] == "loaded"
    return home
