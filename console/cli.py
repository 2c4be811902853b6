"""``lichen console``: the coordinator's pages, and who may use them."""

from typing import Annotated

import typer

from console.people_cli import link
from console.people_cli import person as person_commands
from console.serve import LISTEN, ServeOptions
from console.serve import serve as serve_settings
from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from runtime.process.daemon import run

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
    closed: Annotated[
        bool, typer.Option("--closed", help="everybody signs in, also to look from this machine")
    ] = False,
) -> None:
    """Serve the pages until SIGTERM, beside the coordinator, whether it runs or not."""
    settings = load_settings(config)
    options = ServeOptions(listen, tuple(host or ()), closed)
    raise typer.Exit(run(lambda: serve_settings(settings, options)))
