"""The status file: written by the running agent, read by ``lichen agent status``."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.storage.agent_storage import LOCK_FILE
from runtime.clock import Clock
from runtime.storage.folder_lock import is_locked
from runtime.waits import Wait, stamp
from runtime.waits import read as read_waits

_log = structlog.get_logger(__name__)
STATUS_FILE: Final = "status.json"
_EVERY_S: Final = 5.0
_AT_LEAST_EVERY_S: Final = 60.0
"""Also without a change: after a power cut the time of the last writing shows when the agent ended."""
_STALE_S: Final = 90.0
"""An older status is overdue: the disk is full, or the agent hangs."""


async def keep(
    path: Path,
    status: Callable[[], dict[str, Any]],
    clock: Clock,
    *,
    last_words: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Write the status, for ever, when it changes; the cache may be in memory.

    Args:
        path: of the file.
        status: gives the present status.
        clock: of the times.
        last_words: gives the status at the end; None: as ``status``.
    """
    last, written = "", clock.now()
    try:
        while True:
            now = status()
            # Writing changes the count of bytes written to the disk: no reason to write again.
            text = json.dumps({key: now[key] for key in now if key != "disk_writes"}, default=str)
            if text != last or clock.now() - written >= _AT_LEAST_EVERY_S:
                await asyncio.to_thread(_write, path, now, clock.wall())
                last, written = text, clock.now()
            await clock.sleep(_EVERY_S)
    finally:
        _write(path, (last_words or status)(), clock.wall())


def _write(path: Path, status: dict[str, Any], wall: float) -> None:
    """Atomic for readers, not synced: it is soon written again."""
    text = json.dumps({"pid": os.getpid(), "wall": round(wall, 3), **status}, default=str)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _log.debug("status_not_written", file=str(path), error=str(error))


def read(settings: AgentSettings) -> tuple[bool, dict[str, Any]]:
    """Whether the agent runs, and its last status, with ``agent``, the same as text, first.

    Raises:
        OSError, ValueError: there is no status file, or it cannot be read.
    """
    found = json.loads((settings.cache_dir / STATUS_FILE).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not a status")  # noqa: TRY004 - the content is wrong, not a caller's type
    owned = is_locked(settings.state_dir / LOCK_FILE)
    # The lock is reliable; after a restart of the machine the process id may be another program's.
    alive = _is_alive(found.get("pid")) if owned is None else owned
    words = "running" if alive else f"not running since {stamp(found.get('wall'))}; this was its last state"
    return alive, {"agent": words, "running": alive, **found}


def waits(found: dict[str, Any], now: float, *, alive: bool) -> list[Wait]:
    """The waits in the result of :func:`read`; an agent that does not run waits only for its start.

    Args:
        found: the result of :func:`read`.
        now: Unix seconds.
        alive: the result of :func:`read`.
    """
    written = found.get("wall")
    since = float(written) if isinstance(written, int | float) else None
    if alive:
        told = read_waits(found.get("waits"))
        if since is None or now - since < _STALE_S:
            return told
        why = "the agent runs but its status is not written: what is shown here is old"
        then = "until cache_dir has room, or the agent goes on (lichen agent doctor and the log say more)"
        return [Wait("status", why, since, None, then), *told]
    return [
        Wait("agent", "it does not run", since, None, "until it is started (systemctl start lichen-agent)")
    ]


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
