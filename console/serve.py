"""The console, from its settings to an exit status."""

import socket
from collections.abc import Sequence
from typing import Final

import structlog

from console.app import Console
from console.open_access import LoopbackViewers
from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.watch import TableWatch
from console.views.overview import Overview
from coordinator.config.coordinator import CoordinatorSettings
from protocol.errors import Misconfigured
from runtime import logs
from runtime.process.daemon import supervise
from runtime.web.events import EventStream
from runtime.web.server import PageServer, address, is_loopback

log = structlog.get_logger(__name__)
LISTEN: Final = "127.0.0.1:8480"
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


async def serve(settings: CoordinatorSettings, listen: str, hosts: Sequence[str]) -> int:
    """Serve the pages of a coordinator until a signal; the exit status.

    Args:
        settings: of the coordinator.
        listen: ``HOST:PORT``; port 0 takes any.
        hosts: further names under which browsers reach this machine.

    Raises:
        Misconfigured: the address cannot be listened on.
    """
    logs.configure(settings.log)
    host, port = address(listen, "--listen")
    if not is_loopback(host):
        raise Misconfigured(
            f"--listen {listen}: without a sign-in, only this machine may look: use 127.0.0.1"
        )
    tables, events = TablesConnection(settings.location), EventStream()
    watch = TableWatch(settings, tables, events, MARKS)
    names = [*_LOCAL, host, socket.gethostname(), *hosts]
    parts = [Overview(watch, events).part()]
    console = Console(LoopbackViewers(), parts, names, given={"fleet": settings.fleet})
    server = PageServer(console.asgi, host, port)
    log.info("console_listens", address=f"http://{host}:{server.port}/", fleet=settings.fleet)
    try:
        return await supervise({"tables": watch.run, "pages": server.run})
    finally:
        tables.close()
