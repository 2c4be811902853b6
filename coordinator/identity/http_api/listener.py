"""The listener of the enrolment service: bounds connections of strangers before the TLS handshake.

Unbounded, silent connections could use up the daemon's file handles, and a handshake costs the server more
than the client. So connections and their rate are limited per address and in total before the handshake;
handshake and connection have deadlines. Behind it uvicorn speaks HTTP.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from coordinator.identity.http_api.rate_limit import Throttle
from protocol.errors import Misconfigured
from runtime.text import peer_of

log = structlog.get_logger(__name__)
_quiet: Final = logging.getLogger("coordinator.identity.http_api")
"""Internal errors with their traceback; no line for a stranger who does not speak HTTP."""
_quiet.setLevel(logging.ERROR)
# uvicorn reports a request that is cancelled at the daemon's stop as an error of the application.
_quiet.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
)

MAX_CONNECTIONS: Final = 128
MAX_OF_A_PEER: Final = 32
HANDSHAKE_S: Final = 5.0
CONNECTION_S: Final = 20.0
"""Longest life of a connection: one or two short requests."""
_SHUTDOWN_S: Final = 2.0
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.5
_BREATH_S: Final = 0.002


class _Protocol(H11Protocol):
    """Signals the end of its connection."""

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.logger = _quiet
        self.over = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.over.done():
            self.over.set_result(None)


class BoundedListener:
    """Listens, and serves an HTTP application over TLS.

    Args:
        host: the address to listen on.
        port: 0: any free one, see :attr:`port`.
        context: for TLS.
        app: the ASGI application, as a loaded uvicorn ``Config``.

    Raises:
        Misconfigured: the port is in use, or the address is not local; the message names the key.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        app: Config,
    ) -> None:
        self._context = context
        self._app = app
        self._state = ServerState()
        self._open: set[asyncio.Task[None]] = set()
        self._of_peer: Counter[str] = Counter()
        self._throttle = Throttle(rate=10.0, burst=100.0, total_rate=100.0, total_burst=400.0)
        self.turned_away = 0
        """Connections closed without an answer, because there were too many."""
        self._said = ""
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._listener.close()

    async def run(self) -> None:
        """Accept until cancelled; then close every connection and cancel every request."""
        try:
            while True:
                sock, peer = await self._accept()
                if not self._has_room(peer):
                    self.turned_away += 1
                    sock.close()
                    await asyncio.sleep(_BREATH_S)  # the rest of a flood waits in the kernel
                    continue
                self._of_peer[peer] += 1
                task = asyncio.ensure_future(self._serve(sock))
                self._open.add(task)
                task.add_done_callback(self._left(peer))
        finally:
            self.close()
            await _end(self._open)
            await _end(self._state.tasks)

    def _has_room(self, peer: str) -> bool:
        if len(self._open) >= MAX_CONNECTIONS or self._of_peer[peer] >= MAX_OF_A_PEER:
            return False
        return self._throttle.wait_s(peer, asyncio.get_running_loop().time()) == 0.0

    async def _accept(self) -> tuple[socket.socket, str]:
        while True:
            try:
                sock, address = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                # accept(2) also reports network errors of the new connection; only an invalid listener
                # ends the loop.
                if error.errno in (errno.EBADF, errno.ENOTSOCK, errno.EINVAL):
                    raise
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("connection_not_accepted", why=self._said)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._said = ""
            return sock, peer_of(str(address[0]))

    def _left(self, peer: str) -> Callable[["asyncio.Task[None]"], None]:
        def done(task: "asyncio.Task[None]") -> None:
            self._open.discard(task)
            self._of_peer[peer] -= 1
            if self._of_peer[peer] <= 0:
                del self._of_peer[peer]

        return done

    async def _serve(self, sock: socket.socket) -> None:
        """Serve one connection from the handshake to its end; no action of a peer raises here."""
        protocol = _Protocol(self._app, self._state)  # uvloop returns its own TLS protocol
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(CONNECTION_S):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
                await protocol.over
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            log.debug("connection_closed", why=str(error) or type(error).__name__)
        finally:
            if transport is not None:
                transport.abort()
            with contextlib.suppress(OSError):
                sock.close()


async def _end(tasks: "set[asyncio.Task[None]]") -> None:
    """Cancel all tasks and wait for their end; each removes itself from the set."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(set(tasks))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Misconfigured(
            f"identity.host, identity.port: the enrolment service cannot listen on {host}:{port}: {error}"
        ) from None
    listener.setblocking(False)
    return listener
