"""A bounded HTTP server (uvicorn) for pages, as a service of a daemon."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocol.errors import Misconfigured
from runtime.text import peer_of

_HEAD_BYTES: Final = 32 * 1024
HEAD_S: Final = 20.0
"""A connection on which the head of a request does not come within this time is closed."""
_KEEP_S: Final = 30
_CONNECTIONS: Final = 512
MAX_OF_AN_ADDRESS: Final = 128
"""Connections of one address: a proxy has many viewers, and no single machine may hold all connections."""
HANDSHAKE_S: Final = 10.0
_SHUTDOWN_S: Final = 2.0
_PAUSE_S: Final = 0.5
_BREATH_S: Final = 0.002
_GONE: Final = (errno.EBADF, errno.ENOTSOCK, errno.EINVAL)
"""The listening socket itself is of no use; accept(2) also reports errors of the new connection."""
_STOP_S: Final = 1
_quiet: Final = logging.getLogger("runtime.web.server")
"""Errors of the application with their traceback; no line for a stranger who does not speak HTTP."""
_quiet.setLevel(logging.ERROR)


class _Protocol(H11Protocol):
    """Gives a request its peer's certificate: ``request.state.peer_certificate``, DER bytes or None.

    A connection on which no whole head of a request comes in time is closed: else silent ones would use up
    all that there are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: asyncio.TimerHandle | None = None
        self.logger = _quiet
        self.access_log = False
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.app_state = {**self.app_state, "peer_certificate": certificate}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answers():
            self._stop_waiting()
        elif self._late is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        if not self.over.done():
            self.over.set_result(None)

    def _answers(self) -> bool:
        """Whether a whole head came, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._late = asyncio.get_running_loop().call_later(HEAD_S, self._too_late)

    def _too_late(self) -> None:
        self._late = None
        if not self._answers():
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(Server):
    """Accepts connections itself, to bound them before the TLS handshake. Signals belong to the daemon."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._accepting: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._of_peer: Counter[str] = Counter()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept from the one listening socket that is given."""
        self.servers = []
        (listener,) = sockets or []
        listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept(listener))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, end the answers in order, and then all connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        await super().shutdown(sockets)
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(set(self._open))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno in _GONE:
                        raise
                    _quiet.error("no connection was accepted: %s", error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                peer = peer_of(str(address[0])) if isinstance(address, tuple) else ""
                if len(self._open) >= _CONNECTIONS or (peer and self._of_peer[peer] >= MAX_OF_AN_ADDRESS):
                    sock.close()
                    await asyncio.sleep(_BREATH_S)  # the rest of a flood waits in the kernel
                    continue
                self._of_peer[peer] += 1
                task = asyncio.ensure_future(self._serve_one(sock))
                self._open.add(task)
                task.add_done_callback(partial(self._left, peer))
        finally:
            self.should_exit = True

    def _left(self, peer: str, task: "asyncio.Task[None]") -> None:
        self._open.discard(task)
        self._of_peer[peer] -= 1
        if self._of_peer[peer] <= 0:
            del self._of_peer[peer]

    async def _serve_one(self, sock: socket.socket) -> None:
        """One connection from the handshake to its end; nothing that a peer does raises here."""
        protocol = _Protocol(self.config, self.server_state, self.lifespan.state)
        limits: dict[str, Any] = {}
        if self.config.ssl is not None:
            limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": _SHUTDOWN_S}
        transport: asyncio.Transport | None = None  # uvloop returns its own
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, sock, ssl=self.config.ssl, **limits
            )
            await protocol.over
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            pass
        finally:
            if transport is not None:
                transport.abort()
            with contextlib.suppress(OSError):
                sock.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PageServer:
    """Listens from the start on, and serves an application while it runs.

    Args:
        app: the application.
        host: the address to listen on.
        port: 0: any free one, see :attr:`port`.
        tls: None: plain HTTP.
        listener: a listening socket of systemd instead of ``host`` and ``port``.

    Raises:
        Misconfigured: the port is in use, or the address is not of this machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self._listener = listener or _listen(host, port)
        self.port = int(self._listener.getsockname()[1]) if listener is None else 0
        self._server = _Server(
            Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=_HEAD_BYTES,
                timeout_keep_alive=_KEEP_S,
                timeout_graceful_shutdown=_STOP_S,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
        )

    async def run(self) -> None:
        """Serve until cancelled; open streams end with it."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
        try:
            await asyncio.shield(serving)
        finally:
            self._server.should_exit = True
            await asyncio.wait([serving])
            self._listener.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(listen: str, key: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises:
        Misconfigured: it is no such text; the message names the key.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise Misconfigured(f"{key}: {listen!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise Misconfigured(f"the page cannot listen on {host}:{port}: {error}") from None
