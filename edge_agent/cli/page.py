"""``lichen agent page``: the page of this device, and links to it."""

import os
from typing import Annotated, Final

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.config.agent import AgentSettings
from edge_agent.page.access import PageAccess
from protocol.errors import LichenError, Misconfigured
from runtime import logs
from runtime.cli import Format, fail
from runtime.clock import SystemClock
from runtime.process.daemon import run

LISTEN: Final = "127.0.0.1:8481"
_IDLE_S: Final = 300.0


def page(
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes any")] = LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option(help="further name under which browsers reach this device; repeatable"),
    ] = None,
    idle_s: Annotated[
        float | None,
        typer.Option(
            "--idle", min=1, help="seconds until it ends when nobody looks (on a systemd socket: 300)"
        ),
    ] = None,
    *,
    link: Annotated[
        bool, typer.Option("--link", help="only print a link to the page that systemd starts")
    ] = False,
) -> None:
    """Serve the page of this device: live signal, last windows, labels by one press. Prints a link.

    A link works once, within 15 minutes. The agent runs beside it. Exit status 78: the extra `web` is
    missing, or the address cannot be listened on.
    """
    try:
        settings = read_task_settings(config, task_name)
        access = PageAccess(settings.cache_dir / "page", SystemClock())
        if link:
            typer.echo(f"http://{listen}/enter?token={access.new_token()}")
            return
        status = _served(settings, access, listen, host or [], idle_s)
    except LichenError as error:
        fail("lichen agent page", error, Format.TABLE)
    raise typer.Exit(status)


def _served(
    settings: AgentSettings, access: PageAccess, listen: str, hosts: list[str], idle_s: float | None
) -> int:
    try:
        from edge_agent.page import serve  # noqa: PLC0415 - the extra web; no other command needs it
        from edge_agent.page.idle import IdleTimer  # noqa: PLC0415
    except ImportError as error:
        raise Misconfigured(f"the page needs the extra web: pip install 'lichen[web]' ({error})") from None
    logs.configure(settings.log)
    listener = serve.inherited(os.environ)
    limit_s = idle_s if idle_s is not None or listener is None else _IDLE_S
    idle = IdleTimer(limit_s, SystemClock())
    server = serve.open_server(settings, listen, access=access, hosts=hosts, listener=listener, idle=idle)
    if listener is None:
        where = f"{listen.rpartition(':')[0]}:{server.port}"
        typer.echo(f"http://{where}/enter?token={access.new_token()}")
    return run(lambda: serve.serve(server, idle))
