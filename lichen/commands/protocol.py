"""``lichen protocol``: topics and messages as a document that other tools read."""

import typer

app = typer.Typer(no_args_is_help=True, help="Print the wire protocol as AsyncAPI.", add_completion=False)


@app.callback()
def root() -> None:
    """Keep the subcommand's name in the command line."""


@app.command()
def asyncapi() -> None:
    """Print the AsyncAPI 3.0 document of topics and control messages."""
    from protocol.asyncapi import text  # noqa: PLC0415 - generating it is work that --help does not need

    typer.echo(text(), nl=False)
