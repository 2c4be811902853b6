"""The demo asks lichen's own commands: what they answer, and what is said where they fail."""

import asyncio
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from lichen_lab.demo.core import lichen_commands
from lichen_lab.demo.core.lichen_commands import ask, command_line
from protocol.errors import Transient

Program = Callable[[str], None]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """What runs in place of ``lichen``."""

    def set_to(code: str) -> None:
        command = [sys.executable, "-P", "-c", code, "lichen"]
        monkeypatch.setattr(lichen_commands, "lichen", lambda *words: [*command, *words])

    return set_to


async def test_an_answer_is_read_and_the_words_are_passed_on(program: Program) -> None:
    program("import json, sys; print(json.dumps(sys.argv[1:]))")
    found = await ask("rollout", "status")
    assert found == ["lichen", "rollout", "status", "--format", "json"]
    assert command_line("rollout", "status") == "lichen rollout status"


async def test_a_refusal_is_told_with_its_last_words(program: Program) -> None:
    program("import sys; print('x' * 5000 + 'one is open', file=sys.stderr); sys.exit(65)")
    with pytest.raises(Transient, match=r"exit status 65: x.*one is open$") as error:
        await ask("rollout", "create", "--version", "4")
    assert len(str(error.value)) < 700


async def test_what_is_no_json_is_told(program: Program) -> None:
    program("print('hello')")
    with pytest.raises(Transient, match="lichen rollout status printed no JSON: hello"):
        await ask("rollout", "status")


async def test_a_command_that_hangs_is_ended(program: Program) -> None:
    before = {child.pid for child in psutil.Process().children()}
    program("import time; time.sleep(60)")
    with pytest.raises(Transient, match=r"took more than 0\.5 s"):
        await ask("rollout", "status", patience_s=0.5)
    end = time.monotonic() + 5
    while {child.pid for child in psutil.Process().children()} - before:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
