"""The command ``lichen task try``."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from protocol.tasks.task import Task
from runtime import logs
from runtime.settings.load import LogSettings, load_toml


def try_(
    file: Annotated[Path, typer.Argument(help="the task file")] = Path("task.toml"),
    allow_package: Annotated[
        list[str] | None,
        typer.Option("--allow-package", help="A package that the task may use. May be repeated."),
    ] = None,
) -> None:
    """Try a task once without a fleet: version 0, a device's training, the bundle with its parity gate.

    The windows are noise: it shows whether a network works, not whether it learns. Each step runs in the
    process that does it in a fleet. Version 0 and training are made twice: other values are an error.
    """
    from coordinator.task import prepared  # noqa: PLC0415 - the other commands need no worker
    from lichen.commands.trial.steps import tried  # noqa: PLC0415 - the other commands need no worker

    task = prepared(load_toml(Task, file, named_by="the argument"), file)
    logs.configure(LogSettings(level="warning"))

    async def steps(folder: Path) -> None:
        async for what, words in tried(task, tuple(allow_package or ()), folder, file.parent):
            typer.echo(f"{what:<11} {words}")

    with TemporaryDirectory(prefix="lichen-try-") as folder:
        asyncio.run(steps(Path(folder)))
