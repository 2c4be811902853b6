"""The console, from its settings to an exit status."""

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from console.access.accounts import Accounts
from console.access.session_answer import session_part
from console.access.sign_in import SessionAccess
from console.access.tls import ConsoleTls, TlsFiles
from console.actions.part import ConsoleActions
from console.app import Console
from console.tasks.open_sites import OpenSites
from console.tasks.overview import TaskOverview
from console.tasks.pages_of_tasks import part_of_tasks
from console.tasks.summaries import TaskSummaries
from console.tasks.task_list import TaskList
from console.tasks.task_site import TaskSite
from console.views.device_views import AdmissionViews
from coordinator.config.coordinator import CoordinatorSettings
from runtime import logs
from runtime.process.daemon import supervise
from runtime.process.garbage import collect_seldom
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
        config: the file of the settings, whose tasks are read again when it changes; None: they stay.
    """

    listen: str = LISTEN
    hosts: tuple[str, ...] = ()
    closed: bool = False
    tls: bool = False
    files: TlsFiles | None = None
    config: Path | None = None


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
        self.tasks = TaskList(settings, options.config)
        self.summaries = TaskSummaries(self.tasks)

        async def tasks_of(device: str) -> tuple[str | None, ...]:
            return await asyncio.to_thread(self.summaries.tasks_of, device)

        self._main = main = TaskSite(settings, tasks_of)
        self.sites = OpenSites(self.tasks, tasks_of)
        self.watch, self.events = main.watch, main.events
        admission = AdmissionViews(settings, main.watch, main.devices, main.events)
        overview = TaskOverview(self.tasks, self.summaries, main.watch)
        names = [*_LOCAL, host, socket.gethostname(), *options.hosts, *(() if tls is None else tls.hosts)]
        self._accounts = Accounts(settings.location)
        access = SessionAccess(
            self._accounts,
            tls=tls is not None,
            open_viewing=not options.closed and is_loopback(host),
            certificates=None if tls is None else tls.certificates,
        )
        self.parts = (
            *main.parts,
            overview.part(),
            part_of_tasks(main, self.sites),
            *admission.parts(),
            session_part(),
            ConsoleActions(self.tasks.settings_of).part(),
        )
        console = Console(access, self.parts, names, given={"fleet": settings.fleet}, tasks=self.tasks)
        server = PageServer(console.asgi, host, port, None if tls is None else tls.context)
        self.url = f"http{'' if tls is None else 's'}://{f'[{host}]' if ':' in host else host}:{server.port}"
        self.services = {
            **main.services,
            "pages": server.run,
            "task-list": self.tasks.run,
            "task-sites": self.sites.run,
            **overview.services(),
            **admission.services(),
        }
        if tls is not None:
            self.services["certificate"] = tls.run

    def close(self) -> None:
        """Close what it holds of the tables."""
        self._main.close()
        self.summaries.close_idle(0.0)
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
