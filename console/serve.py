"""The console, from its settings to an exit status."""

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import Final

import structlog

from console.access.accounts import Accounts
from console.access.session_answer import session_part
from console.access.sign_in import SessionAccess
from console.access.tls import ConsoleTls, TlsFiles
from console.actions.part import ConsoleActions
from console.app import Console
from console.tables.bundle_files import BundleFiles
from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.device_views import DeviceViews
from console.views.evaluations.device_evaluations import DeviceEvaluationPages
from console.views.overview import Overview
from console.views.rollouts import RolloutPages
from console.views.rounds import RoundPages
from console.views.versions import VersionPages
from coordinator.config.coordinator import CoordinatorSettings
from runtime import logs
from runtime.process.daemon import supervise
from runtime.process.garbage import collect_seldom
from runtime.web.events import EventStream
from runtime.web.server import PageServer, address, is_loopback

log = structlog.get_logger(__name__)
LISTEN: Final = "127.0.0.1:8480"
NICENESS: Final = 10
"""Beside a coordinator that needs all cores, the console gets about a tenth of one."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve.

    Attributes:
        listen: ``HOST:PORT``; port 0 takes any.
        hosts: further names under which browsers reach this machine.
        closed: everybody signs in, also those who only look on this machine.
        tls: TLS also on the loopback address; other addresses have it always.
        files: a certificate and its key; None: one of the fleet's authority.
    """

    listen: str = LISTEN
    hosts: tuple[str, ...] = ()
    closed: bool = False
    tls: bool = False
    files: TlsFiles | None = None


class RunningConsole:
    """The console, listening.

    Args:
        settings: of the coordinator.
        options: how to serve.

    Raises:
        Misconfigured: the address cannot be listened on, or another machine would be served without TLS.
        Transient: the disk is full.
    """

    def __init__(self, settings: CoordinatorSettings, options: ServeOptions) -> None:
        host, port = address(options.listen, "--listen")
        tls = None
        if options.tls or options.files is not None or not is_loopback(host):
            tls = ConsoleTls(settings, host, options.hosts, options.files)
        events = EventStream()
        # Of the watch alone: no page waits until the status is read.
        self._watched, self._tables = TablesConnection(settings.location), TablesConnection(settings.location)
        self.watch = watch = TableWatch(settings, self._watched, events, MARKS)
        names = [*_LOCAL, host, socket.gethostname(), *options.hosts, *(() if tls is None else tls.hosts)]
        self._accounts = Accounts(settings.location)
        access = SessionAccess(
            self._accounts,
            tls=tls is not None,
            open_viewing=not options.closed and is_loopback(host),
            certificates=None if tls is None else tls.certificates,
        )
        readings = SharedReadings(self._tables, watch)
        self._devices = DeviceViews(settings, watch, readings, events)
        parts = [
            Overview(settings, watch, readings, events).part(),
            RoundPages(watch, readings).part(),
            VersionPages(watch, readings, BundleFiles(settings), settings.fleet).part(),
            DeviceEvaluationPages(watch, readings).part(),
            RolloutPages(settings, watch, readings).part(),
            *self._devices.parts(),
            session_part(),
            ConsoleActions(settings, watch).part(),
        ]
        self.parts = tuple(parts)
        console = Console(access, self.parts, names, given={"fleet": settings.fleet})
        server = PageServer(console.asgi, host, port, None if tls is None else tls.context)
        self.url = f"http{'' if tls is None else 's'}://{f'[{host}]' if ':' in host else host}:{server.port}"
        self.services = {"tables": watch.run, "pages": server.run, **self._devices.services()}
        if tls is not None:
            self.services["certificate"] = tls.run

    def close(self) -> None:
        """Close what it holds of the tables."""
        self._devices.close()
        self._watched.close()
        self._tables.close()
        self._accounts.close()


async def serve(settings: CoordinatorSettings, options: ServeOptions) -> int:
    """Serve the pages of a coordinator until a signal; the exit status. Raises as :class:`RunningConsole`."""
    logs.configure(settings.log)
    collect_seldom()
    _yield_to_coordinator()
    running = RunningConsole(settings, options)
    log.info("console_listens", address=f"{running.url}/", fleet=settings.fleet)
    try:
        return await supervise(running.services)
    finally:
        running.close()


def _yield_to_coordinator() -> None:
    """Take a lower priority than the coordinator on the same machine, unless one was set from outside."""
    with contextlib.suppress(OSError):  # systemd's filter forbids it; the unit has set it
        if os.getpriority(os.PRIO_PROCESS, 0) == 0:
            os.nice(NICENESS)
