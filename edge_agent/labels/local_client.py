"""The other end of the local interface: one request to the running agent, in a command or in the page."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from edge_agent.labels.requests import Live, Request
from protocol.errors import Misconfigured, Reason, Refused, Transient

MAX_ANSWER: Final = 4 * 1024 * 1024
TIMEOUT_S: Final = 30.0
"""The model may have to predict hundreds of windows first."""


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of at most 107 bytes for a socket's address, whatever its folder. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _encoded(request: Request) -> bytes:
    return request.model_dump_json(exclude_none=True).encode() + b"\n"


def _decoded(line: bytes, path: Path) -> dict[str, Any]:
    if not line:
        raise Transient(
            f"{path}: the agent has ended before it answered; whether it did what was asked is unknown"
        )
    try:
        answer = json.loads(line)
    except ValueError:
        raise Transient(f"{path}: the agent's answer is not readable") from None
    if "error" in answer:
        words = str(answer["error"])
        raise Refused(Reason.OUT_OF_BOUNDS, words) if answer.get("kind") == "refused" else Transient(words)
    found: dict[str, Any] = answer["ok"]
    return found


def _connected(path: Path) -> socket.socket:
    """Raises Transient, Misconfigured."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(TIMEOUT_S)
        with short_name(path) as name:
            sock.connect(name)
    except PermissionError:
        sock.close()
        words = "only the agent's user and root may talk to it (sudo -u lichen-agent lichen agent ...)"
        raise Misconfigured(f"{path}: {words}") from None
    except OSError as error:
        sock.close()
        words = f"the agent does not answer ({error.strerror}); does it run? systemctl status lichen-agent"
        raise Transient(f"{path}: {words}") from None
    return sock


def ask(path: Path, request: Request) -> dict[str, Any]:
    """Ask the running agent, and wait for its answer.

    Raises:
        Refused: by the agent, in its words.
        Transient: it does not run, or cannot do it now.
        Misconfigured: this user may not talk to it.
    """
    with _connected(path) as sock:
        try:
            with suppress(BrokenPipeError):  # an agent that is full refuses, and closes, before it is asked
                sock.sendall(_encoded(request))
            with sock.makefile("rb") as file:
                return _decoded(file.readline(MAX_ANSWER), path)
        except TimeoutError:
            raise Transient(f"{path}: the agent has not answered in {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise Transient(
                f"{path}: {error.strerror}; whether the agent did what was asked is unknown"
            ) from None


async def live(path: Path) -> AsyncGenerator[dict[str, Any], None]:
    """What the sensors deliver, as it comes, until the agent ends.

    Raises:
        Refused, Transient, Misconfigured: as :func:`ask`.
    """
    sock = await asyncio.to_thread(_connected, path)
    with suppress(OSError):  # as above; what else is wrong, reading says
        await asyncio.to_thread(sock.sendall, _encoded(Live(do="live")))
    sock.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_ANSWER)
    try:
        while line := await reader.readline():
            yield _decoded(line, path)
    except (OSError, ValueError) as error:
        raise Transient(f"{path}: {error}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
