"""The page, from its settings to an exit status; on its own socket, or on that of systemd."""

import os
import socket
from collections.abc import Mapping
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.labels.requests import SOCKET
from edge_agent.page.access import PageAccess
from edge_agent.page.app import DevicePage
from edge_agent.page.idle import IdleTimer
from protocol.errors import Misconfigured
from runtime.process.daemon import supervise
from runtime.web.server import PageServer, address, is_loopback

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_FIRST_FD: Final = 3


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """The socket that systemd passes on (``LISTEN_FDS``), if this process is meant; None if there is none.

    Raises:
        Misconfigured: there are several.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = environment.get("LISTEN_FDS", "0")
    if count != "1":
        raise Misconfigured(
            f"LISTEN_FDS is {count}: the page takes one socket (one ListenStream= in its unit)"
        )
    listener = socket.socket(fileno=_FIRST_FD)
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def open_server(
    settings: AgentSettings,
    listen: str,
    *,
    access: PageAccess,
    hosts: list[str],
    listener: socket.socket | None,
    idle: IdleTimer,
) -> PageServer:
    """The page's server, listening.

    Args:
        settings: of the agent.
        listen: ``HOST:PORT``, unless ``listener`` is given.
        access: links and sessions.
        hosts: further names under which browsers reach this device.
        listener: from :func:`inherited`.
        idle: ends it.

    Raises:
        Misconfigured: the address cannot be listened on.
    """
    host, port = address(listen, "--listen")
    names = [*_LOCAL, *hosts] if is_loopback(host) else [*_LOCAL, host, socket.gethostname(), *hosts]
    title = " ".join(filter(None, (settings.device, settings.task_name)))
    page = DevicePage(settings.cache_dir / SOCKET, title, access, names, idle)
    return PageServer(page.asgi, host, port, listener=listener)


async def serve(server: PageServer, idle: IdleTimer) -> int:
    """Serve until a signal, or until nobody looks; the exit status."""
    return await supervise({"page": server.run, "idle": idle.run})
