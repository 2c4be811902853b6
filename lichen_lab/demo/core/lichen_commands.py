"""Run lichen's own commands, as an operator does, and read their JSON output."""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lichen_lab.simulation.processes.testbed import lichen
from protocol.errors import Transient

if TYPE_CHECKING:
    from lichen_lab.demo.core.fleet import DemoFleet

_PATIENCE_S: Final = 60.0
_WORDS: Final = 500
"""Characters of an error message that are kept."""


async def history(fleet: "DemoFleet[Any]") -> dict[str, Any]:
    """The coordinator's history, by its own command.

    Raises:
        Transient: the command failed or took more than a minute.
    """
    config = str(fleet.layout.config("coordinator"))
    found: dict[str, Any] = await ask("coordinator", "history", "--config", config)
    return found


def command_line(*words: str) -> str:
    """A command as a person types it."""
    return " ".join(("lichen", *words))


async def ask(
    *words: str, patience_s: float = _PATIENCE_S, command: Callable[..., list[str]] | None = None
) -> Any:
    """Run ``lichen WORDS --format json``.

    Args:
        words: of the command.
        patience_s: the command is killed after this time.
        command: ``lichen WORDS`` in another environment; None: in this one.

    Returns:
        What it printed.

    Raises:
        Transient: it failed, printed no JSON, or took too long; the message ends with its last words.
    """
    name = command_line(*words[:2])
    process = await asyncio.create_subprocess_exec(
        *(command or lichen)(*words, "--format", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), patience_s)
    except TimeoutError:
        raise Transient(f"{name} took more than {patience_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        message = (err or out).decode(errors="replace").strip()
        raise Transient(f"{name} ended with exit status {process.returncode}: {message[-_WORDS:]}")
    try:
        return json.loads(out)
    except ValueError:
        raise Transient(f"{name} printed no JSON: {out.decode(errors='replace')[:_WORDS]}") from None
