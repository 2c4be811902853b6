"""Shared by the commands: the format of results, and the end with an error."""

import json
from enum import StrEnum
from typing import Annotated, Any, NoReturn, Protocol

import typer

from protocol.errors import LichenError, Refused
from runtime import exit_codes


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class PrintedAnswer(Protocol):
    """A result as JSON values and in words."""

    @property
    def words(self) -> str:
        """For a person."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """For programs."""


FormatOption = Annotated[Format, typer.Option("--format", help="A table for people, or one JSON object.")]


def print_result(fmt: Format, result: Any, text: str, indent: int | None = None) -> None:
    """Print a result: as JSON for programs, or ``text`` for people."""
    typer.echo(json.dumps(result, indent=indent) if fmt is Format.JSON else text)


def print_answer(fmt: Format, answer: PrintedAnswer) -> None:
    """Print the answer to an action."""
    print_result(fmt, answer.model_dump(mode="json"), answer.words)


def fail(
    command: str, error: LichenError | str, fmt: Format, code: int | None = None, **more: Any
) -> NoReturn:
    """Print an error on standard error, for programs also as JSON on standard output, and exit.

    Args:
        command: starts the line, such as ``lichen round``.
        error: an error or a sentence.
        fmt: how results are printed.
        code: the exit code; None: that of the error, or 69 for a sentence.
        more: further keys of the JSON object.
    """
    words = error.words if isinstance(error, Refused) else str(error)
    if fmt is Format.JSON:
        typer.echo(json.dumps({"error": words, **more}))
    typer.echo(f"{command}: {words}", err=True)
    if code is None:
        code = exit_codes.UNAVAILABLE if isinstance(error, str) else exit_codes.of(error)
    raise typer.Exit(code)
