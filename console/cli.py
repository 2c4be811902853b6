"""``lichen console``: the coordinator's pages."""

from typing import Annotated

import typer

from console.serve import LISTEN
from console.serve import serve as serve_settings
from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from runtime.process.daemon import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The live pages and the management API of a coordinator.",
)


@app.callback()
def root() -> None:
    """Keep the subcommand's name although there is only one."""


@app.command()
def serve(
    config: Config,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT; port 0 takes any")] = LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="further name under which browsers reach this machine; repeatable"),
    ] = None,
) -> None:
    """Serve the pages until SIGTERM, beside the coordinator, whether it runs or not."""
    settings = load_settings(config)
    raise typer.Exit(run(lambda: serve_settings(settings, listen, host or [])))
