"""The demo asks lichen's own commands: what they answer, and what is said where they fail."""

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from lichen_lab.demo.core.lichen_commands import ask, spoken
from protocol.errors import Transient


def fleet(code: str) -> Any:
    """One whose every command is this program."""
    return SimpleNamespace(command=lambda *words: [sys.executable, "-P", "-c", code, *words])


async def test_an_answer_is_read_and_the_words_are_passed_on() -> None:
    found = await ask(fleet("import json, sys; print(json.dumps(sys.argv[1:]))"), "rollout", "status")
    assert found == ["lichen", "rollout", "status", "--format", "json"]
    assert spoken("rollout", "status") == "lichen rollout status"


async def test_a_refusal_is_told_with_its_last_words() -> None:
    code = "import sys; print('x' * 5000 + 'one is open', file=sys.stderr); sys.exit(65)"
    with pytest.raises(Transient, match=r"exit status 65: x.*one is open$") as error:
        await ask(fleet(code), "rollout", "create", "--version", "4")
    assert len(str(error.value)) < 700


async def test_what_is_no_json_is_told() -> None:
    with pytest.raises(Transient, match="lichen rollout status printed no JSON: hello"):
        await ask(fleet("print('hello')"), "rollout", "status")


async def test_a_command_that_hangs_is_ended() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(Transient, match=r"took more than 0\.5 s"):
        await ask(fleet("import time; time.sleep(60)"), "rollout", "status", patience_s=0.5)
    end = time.monotonic() + 5
    while {child.pid for child in psutil.Process().children()} - before:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
