"""What ``lichen agent status`` shows: a file that the running agent keeps, and whether the agent lives."""

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config import AgentSettings
from runtime.clock import Clock
from runtime.owner import is_owned

_log = structlog.get_logger("edge_agent.status")
STATUS_FILE: Final = "status.json"
LOCK_FILE: Final = "agent.lock"
_EVERY_S: Final = 5.0
_AT_LEAST_EVERY_S: Final = 60.0
"""Also where nothing changed: after a power cut the time of the last writing says when the agent died."""


async def keep(path: Path, status: Callable[[], dict[str, Any]], clock: Clock) -> None:
    """Write the status, for ever, when it changed; the cache may live in memory."""
    last, written = "", clock.now()
    try:
        while True:
            text = json.dumps(status(), default=str)
            if text != last or clock.now() - written >= _AT_LEAST_EVERY_S:
                await asyncio.to_thread(_write, path, status(), clock.wall())
                last, written = text, clock.now()
            await clock.sleep(_EVERY_S)
    finally:
        _write(path, status(), clock.wall())


def _write(path: Path, status: dict[str, Any], wall: float) -> None:
    """Atomic for readers, not synced: it is written again in a moment."""
    text = json.dumps({"pid": os.getpid(), "wall": round(wall, 3), **status}, indent=1, default=str)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.debug("status not written", file=str(path), error=str(error))


def read(settings: AgentSettings) -> tuple[bool, dict[str, Any]]:
    """Whether the agent runs, and its last words, begun with ``agent``: the same in words.

    Raises:
        OSError, ValueError: there are no last words, or they are not readable.
    """
    found = json.loads((settings.cache_dir / STATUS_FILE).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not a status")  # noqa: TRY004 - the content is wrong, not a caller's type
    owned = is_owned(settings.state_dir / LOCK_FILE)
    # The lock cannot be mistaken; a process id may be another program's after a restart of the machine.
    alive = _is_alive(found.get("pid")) if owned is None else owned
    words = "running" if alive else f"not running since {stamp(found.get('wall'))}; this was its last state"
    return alive, {"agent": words, "running": alive, **found}


def stamp(wall: object) -> str:
    """Unix seconds as a time for people, UTC."""
    if not isinstance(wall, int | float):
        return "an unknown time"
    return datetime.fromtimestamp(wall, UTC).isoformat(sep=" ", timespec="seconds")


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (OSError, OverflowError):
        return False
    return True
