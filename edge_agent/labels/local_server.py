"""The local interface: a Unix socket that only the agent's user (and root) can open.

One request a connection, a line of JSON; one answer, ``{"ok": ...}`` or ``{"error": words, "kind": ...}``.
After ``live`` messages follow until the other side closes. Bounds: ``MAX_CONNECTIONS`` at once,
``MAX_REQUEST`` bytes, ``_REQUEST_S`` seconds to send the request, and for a reader that does not read.
"""

import asyncio
import json
import socket
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.labels.local_client import short_name
from edge_agent.labels.requests import MAX_REQUEST, LastLines, Live, read_request
from edge_agent.labels.service import LabelService
from protocol.errors import LichenError, Reason, Refused
from protocol.log_lines import MAX_LINES
from runtime.clock import Clock
from runtime.diagnosis.recent_lines import MAX_BYTES, RecentLines

_log = structlog.get_logger(__name__)
MAX_CONNECTIONS: Final = 16
_REQUEST_S: Final = 10.0
_RETRY_S: Final = 30.0


class LocalServer:
    """One service.

    Args:
        path: of the socket.
        service: answers.
        clock: paces attempts to open the socket.
        recent: the last log lines; None: none are stored.
    """

    def __init__(
        self, path: Path, service: LabelService, clock: Clock, recent: RecentLines | None = None
    ) -> None:
        self._path = path
        self._service = service
        self._clock = clock
        self._recent = recent
        self._connections: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Serve for ever; where no socket can be made (a full disk), try again."""
        reported = False
        while True:
            try:
                sock = listening(self._path)
            except OSError as error:
                if not reported:
                    _log.warning("no_local_interface", socket=str(self._path), error=str(error))
                reported = True
                await self._clock.sleep(_RETRY_S)
                continue
            # It listens inside the block that closes it: no cancellation leaves an open socket.
            server = await asyncio.start_unix_server(
                self._connected, sock=sock, limit=MAX_REQUEST, start_serving=False
            )
            try:
                await server.start_serving()
                await asyncio.Event().wait()
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)
                self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._connections.add(task)
        try:
            with suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                raise Refused(Reason.FULL, f"{MAX_CONNECTIONS} programs talk to this agent already")
            try:
                line = await asyncio.wait_for(reader.readline(), _REQUEST_S)
            except ValueError:
                raise Refused(Reason.TOO_LARGE, f"a request has at most {MAX_REQUEST} bytes") from None
            request = read_request(line)
            if isinstance(request, Live):
                await self._stream(reader, writer)
            elif isinstance(request, LastLines):
                await _send(writer, {"ok": self._last_lines()})
            else:
                await _send(writer, {"ok": await self._service.answer(request)})
        except LichenError as error:
            words = error.words if isinstance(error, Refused) else str(error)
            kind = "refused" if isinstance(error, Refused) else "transient"
            await _send(writer, {"error": words, "kind": kind})

    def _last_lines(self) -> dict[str, Any]:
        lines = [] if self._recent is None else self._recent.newest(MAX_BYTES, MAX_LINES)
        return {"lines": [[line.at, line.level, line.text] for line in lines]}

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the other side closes, or sends anything more."""
        closed = asyncio.ensure_future(reader.read(1))
        try:
            async with aclosing(self._service.live()) as messages:
                async for message in messages:
                    await _send(writer, {"ok": message})
                    if closed.done():
                        return
        finally:
            closed.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await closed


async def _send(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")
    await asyncio.wait_for(writer.drain(), _REQUEST_S)


def listening(path: Path) -> socket.socket:
    """A listening socket at ``path``, instead of one that was left there; mode 0600 before it listens.

    Its name may be longer than the 107 bytes of a socket's address: it is given below its folder's handle.

    Raises:
        OSError: it cannot be made.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        path.unlink(missing_ok=True)
        with short_name(path) as name:
            sock.bind(name)
        path.chmod(0o600)
        sock.listen(MAX_CONNECTIONS)
    except BaseException:
        sock.close()
        raise
    return sock
