"""``lichen console``: the coordinator's pages, and who may use them."""

from pathlib import Path
from typing import Annotated

import typer

from console.access.tls import TlsFiles
from console.people_cli import link
from console.people_cli import person as person_commands
from console.serve import LISTEN, ServeOptions
from console.serve import serve as serve_settings
from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from runtime.process.daemon import run
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The live pages and the management API of a coordinator.",
)
app.add_typer(person_commands, name="person")
app.command()(link)


@app.command()
def serve(
    config: Config,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT; port 0 takes any")] = LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="further name under which browsers reach this machine; repeatable"),
    ] = None,
    *,
    tls: Annotated[bool, typer.Option("--tls", help="TLS also on the loopback address")] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", help="certificate with its chain  [default: of the fleet's authority]"),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="the key of --tls-cert")] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="everybody signs in, also to look from this machine")
    ] = False,
) -> None:
    """Serve the pages until SIGTERM, beside the coordinator, whether it runs or not.

    Other machines are served with TLS alone.
    """
    settings = load_settings(config)
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key: give both, or none")
    files = None if tls_cert is None or tls_key is None else TlsFiles(tls_cert, tls_key)
    options = ServeOptions(listen, tuple(host or ()), closed, tls, files, config)
    with run_as_owner(settings.state_dir):
        status = run(lambda: serve_settings(settings, options))
    raise typer.Exit(status)
